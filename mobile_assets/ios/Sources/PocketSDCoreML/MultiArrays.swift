#if canImport(CoreML)
import CoreML
import Foundation
import PocketSDCore

extension MLMultiArray {
    /// A tensor in the element type that a model asks for.
    convenience init(_ tensor: Tensor, as dataType: MLMultiArrayDataType) throws {
        try self.init(shape: tensor.shape.map { NSNumber(value: $0) }, dataType: dataType)
        let (shape, element) = (tensor.shape, try dataType.element())
        try withUnsafeMutableBytes { bytes, strides in
            let layout = try StridedLayout(shape: shape, strides: strides, element: element)
            try layout.write(tensor, to: bytes)
        }
    }

    /// The values without the gaps that Core ML may leave between rows.
    func tensor() throws -> Tensor {
        let layout = try StridedLayout(
            shape: shape.map(\.intValue), strides: strides.map(\.intValue),
            element: dataType.element())
        return try withUnsafeBytes { try layout.read($0) }
    }
}

extension MLMultiArrayDataType {
    func element() throws -> StridedLayout.Element {
        switch self {
        case .float16: return .float16
        case .float32: return .float32
        case .double: return .float64
        case .int32: return .int32
        default: throw PocketSDError("Core ML's element type \(rawValue) is not known here")
        }
    }
}
#endif
