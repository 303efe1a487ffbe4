/// How a tensor lies in memory that belongs to somebody else, who may have left gaps in it.
public struct StridedLayout: Equatable, Sendable {
    public enum Element: Sendable {
        case float16, float32, float64, int32

        var bytes: Int {
            switch self {
            case .float16: return 2
            case .float32, .int32: return 4
            case .float64: return 8
            }
        }
    }

    public let shape: [Int]
    public let strides: [Int]  // in elements
    public let element: Element

    private let count: Int
    private let extent: Int  // bytes from the first element to the end of the last

    public init(shape: [Int], strides: [Int], element: Element) throws {
        guard let count = elementCount(shape), shape.count == strides.count,
            strides.allSatisfy({ (0...1 << 31).contains($0) })
        else { throw PocketSDError("shape \(shape) and strides \(strides) are no tensor") }
        var last = 0
        for (size, stride) in zip(shape, strides) where size > 1 {
            let (step, tooFar) = (size - 1).multipliedReportingOverflow(by: stride)
            guard !tooFar, step <= 1 << 40 else {
                throw PocketSDError("shape \(shape) and strides \(strides) are no tensor")
            }
            last += step
        }
        (self.shape, self.strides, self.element, self.count) = (shape, strides, element, count)
        extent = count == 0 ? 0 : (last + 1) * element.bytes
    }

    /// The tensor without gaps, floating point as float32.
    public func read(_ bytes: UnsafeRawBufferPointer) throws -> Tensor {
        try require(bytes.count)
        switch element {
        case .int32: return try Tensor(shape: shape, .int32(gathered { load($0, bytes) }))
        case .float32: return try Tensor(shape: shape, gathered { load($0, bytes) })
        case .float64:
            return try Tensor(shape: shape, gathered { Float(load($0, bytes) as Double) })
        case .float16: return try Tensor(shape: shape, gathered { Half.float(load($0, bytes)) })
        }
    }

    /// The tensor's values in this layout; what lies in the gaps stays.
    public func write(_ tensor: Tensor, to bytes: UnsafeMutableRawBufferPointer) throws {
        try require(bytes.count)
        guard tensor.shape == shape else {
            throw PocketSDError("a tensor of shape \(tensor.shape) does not fit one of \(shape)")
        }
        switch tensor.values {
        case .float32(let values):
            guard element != .int32 else { throw PocketSDError("float32 where int32 is needed") }
            scatter(values, to: bytes) { $0 }
        case .int32(let values):
            if element == .int32 {
                forEachOffset {
                    bytes.storeBytes(of: values[$1], toByteOffset: $0 * 4, as: Int32.self)
                }
            } else {
                scatter(values, to: bytes) { Float($0) }
            }
        }
    }

    private func require(_ bytes: Int) throws {
        guard bytes >= extent else {
            throw PocketSDError("\(bytes) bytes are too few for shape \(shape), strides \(strides)")
        }
    }

    private func load<Value>(_ offset: Int, _ bytes: UnsafeRawBufferPointer) -> Value {
        bytes.loadUnaligned(fromByteOffset: offset * element.bytes, as: Value.self)
    }

    private func gathered<Value>(_ value: (Int) -> Value) -> [Value] {
        var found: [Value] = []
        found.reserveCapacity(count)
        forEachOffset { offset, _ in found.append(value(offset)) }
        return found
    }

    private func scatter<Value>(
        _ values: [Value], to bytes: UnsafeMutableRawBufferPointer, as float: (Value) -> Float
    ) {
        forEachOffset { offset, index in
            let value = float(values[index])
            let place = offset * element.bytes
            switch element {
            case .float16:
                bytes.storeBytes(of: Half.bits(value), toByteOffset: place, as: UInt16.self)
            case .float64: bytes.storeBytes(of: Double(value), toByteOffset: place, as: Double.self)
            default: bytes.storeBytes(of: value, toByteOffset: place, as: Float.self)
            }
        }
    }

    /// Calls `each(offset in memory, index without gaps)`, in row-major order.
    private func forEachOffset(_ each: (Int, Int) -> Void) {
        guard count > 0 else { return }
        let columns = shape.last ?? 1, step = strides.last ?? 1
        var position = [Int](repeating: 0, count: max(shape.count - 1, 0))
        var (start, index) = (0, 0)
        while true {
            for column in 0..<columns { each(start + column * step, index + column) }
            index += columns
            guard index < count else { return }
            var axis = position.count - 1
            while position[axis] == shape[axis] - 1 {  // carry, as an odometer does
                start -= position[axis] * strides[axis]
                position[axis] = 0
                axis -= 1
            }
            position[axis] += 1
            start += strides[axis]
        }
    }
}
