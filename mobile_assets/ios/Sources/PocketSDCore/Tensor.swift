/// Numbers with a shape, in row-major order: what engines take and give.
public struct Tensor: Equatable, Sendable {
    public enum Values: Equatable, Sendable {
        case float32([Float])
        case int32([Int32])

        var count: Int {
            switch self {
            case .float32(let values): return values.count
            case .int32(let values): return values.count
            }
        }

        var dtype: String {
            switch self {
            case .float32: return "float32"
            case .int32: return "int32"
            }
        }
    }

    public let shape: [Int]
    public let values: Values

    public init(shape: [Int], _ values: Values) throws {
        guard let count = elementCount(shape), count == values.count else {
            throw PocketSDError("\(values.count) values do not make a tensor of shape \(shape)")
        }
        self.shape = shape
        self.values = values
    }

    public init(shape: [Int], _ values: [Float]) throws {
        try self.init(shape: shape, .float32(values))
    }

    public func floats() throws -> [Float] {
        guard case .float32(let found) = values else {
            throw PocketSDError("\(values.dtype) where float32 is needed")
        }
        return found
    }

    /// These rows of the first dimension, in this order.
    func rows(_ indices: [Int]) throws -> Tensor {
        let size = values.count / max(shape.first ?? 1, 1)
        func picked<Value>(_ all: [Value]) -> [Value] {
            indices.flatMap { all[$0 * size..<($0 + 1) * size] }
        }
        let newShape = [indices.count] + shape.dropFirst()
        switch values {
        case .float32(let all): return try Tensor(shape: newShape, .float32(picked(all)))
        case .int32(let all): return try Tensor(shape: newShape, .int32(picked(all)))
        }
    }
}

/// The product of the sizes; nil if one is negative or the product absurd.
public func elementCount(_ shape: [Int]) -> Int? {
    var count = 1
    for size in shape {
        let (product, overflow) = count.multipliedReportingOverflow(by: size)
        guard size >= 0, !overflow, product <= 1 << 31 else { return nil }
        count = product
    }
    return count
}
