/// As much of Core ML as PocketSDCoreML calls, for systems that have none: it shows that the engine
/// compiles and what it does with what Core ML gives it. It shows nothing of Core ML itself.
///
/// A "model" is a folder with model.json: {"inputs": {name: type}, "outputs": {name: type},
/// "factor": {function or "": number}}. Every output is the factor times the sum of the inputs,
/// each cut or repeated to the first one's size; its rows lie in memory with gaps between them.
import Foundation

public enum MLComputeUnits: Int {
    case cpuOnly = 0
    case cpuAndGPU = 1
    case all = 2
    case cpuAndNeuralEngine = 3
}

public final class MLModelConfiguration {
    public var computeUnits = MLComputeUnits.all
    public var functionName: String?

    public init() {}
}

public enum MLMultiArrayDataType: Int {
    case double = 65600
    case float32 = 65568
    case float16 = 65552
    case int32 = 131104
    case int8 = 131080

    init(named name: String) {
        let names: [String: Self] = [
            "float64": .double, "float32": .float32, "float16": .float16, "int32": .int32,
        ]
        self = names[name] ?? .int8
    }

    fileprivate var bytes: Int { (rawValue & 0xFFFF) / 8 }
}

open class MLMultiArray {
    public let shape: [NSNumber]
    public let strides: [NSNumber]
    public let dataType: MLMultiArrayDataType
    fileprivate var memory: [UInt8]

    /// Rows begin at multiples of 16 elements, as a graphics buffer's might.
    public required init(shape: [NSNumber], dataType: MLMultiArrayDataType) throws {
        var steps: [Int] = []
        var step = 1
        for (index, size) in shape.map(\.intValue).reversed().enumerated() {
            steps.insert(step, at: 0)
            step *= index == 0 ? (size + 15) / 16 * 16 : size
        }
        (self.shape, self.dataType) = (shape, dataType)
        strides = steps.map { NSNumber(value: $0) }
        memory = [UInt8](repeating: 0xFF, count: step * dataType.bytes)  // NaN in the gaps
    }

    public func withUnsafeBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
        try memory.withUnsafeBytes(body)
    }

    public func withUnsafeMutableBytes<R>(
        _ body: (UnsafeMutableRawBufferPointer, [Int]) throws -> R
    ) rethrows -> R {
        let steps = strides.map(\.intValue)
        return try memory.withUnsafeMutableBytes { try body($0, steps) }
    }
}

public final class MLFeatureValue {
    public let multiArrayValue: MLMultiArray?

    public init(multiArray: MLMultiArray) {
        multiArrayValue = multiArray
    }
}

public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }
    func featureValue(for name: String) -> MLFeatureValue?
}

public final class MLDictionaryFeatureProvider: MLFeatureProvider {
    private let features: [String: MLFeatureValue]

    public init(dictionary: [String: Any]) throws {
        features = dictionary.compactMapValues { $0 as? MLFeatureValue }
        guard features.count == dictionary.count else { throw StandInError.notAFeature }
    }

    public var featureNames: Set<String> { Set(features.keys) }
    public func featureValue(for name: String) -> MLFeatureValue? { features[name] }
}

public struct MLMultiArrayConstraint {
    public let dataType: MLMultiArrayDataType
}

public struct MLFeatureDescription {
    public let multiArrayConstraint: MLMultiArrayConstraint?
}

public struct MLModelDescription {
    public let inputDescriptionsByName: [String: MLFeatureDescription]
}

public enum StandInError: Error {
    case notAFeature, wrongInput(String), noFunction, notCompiled
}

public final class MLModel {
    /// What was asked for, for tests.
    public nonisolated(unsafe) static var compiled: [String] = []
    public nonisolated(unsafe) static var opened: [MLModelConfiguration] = []

    private struct Content: Decodable {
        let inputs: [String: String]
        let outputs: [String: String]
        let factor: [String: Double]
    }

    private let content: Content
    private let factor: Double

    public class func compileModel(at url: URL) throws -> URL {
        let place = FileManager.default.temporaryDirectory
            .appendingPathComponent("\(UUID().uuidString).mlmodelc")
        try FileManager.default.copyItem(at: url, to: place)
        compiled.append(url.lastPathComponent)
        return place
    }

    public init(contentsOf url: URL, configuration: MLModelConfiguration) throws {
        guard url.pathExtension == "mlmodelc" else { throw StandInError.notCompiled }
        let text = try Data(contentsOf: url.appendingPathComponent("model.json"))
        content = try JSONDecoder().decode(Content.self, from: text)
        guard let factor = content.factor[configuration.functionName ?? ""] else {
            throw StandInError.noFunction
        }
        self.factor = factor
        MLModel.opened.append(configuration)
    }

    public var modelDescription: MLModelDescription {
        let inputs = content.inputs.mapValues { type in
            MLFeatureDescription(
                multiArrayConstraint: MLMultiArrayConstraint(
                    dataType: MLMultiArrayDataType(named: type)))
        }
        return MLModelDescription(inputDescriptionsByName: inputs)
    }

    public func prediction(from input: MLFeatureProvider) throws -> MLFeatureProvider {
        var arrays: [MLMultiArray] = []
        for (name, type) in content.inputs.sorted(by: { $0.key < $1.key }) {
            guard let array = input.featureValue(for: name)?.multiArrayValue,
                array.dataType == MLMultiArrayDataType(named: type)
            else { throw StandInError.wrongInput(name) }
            arrays.append(array)
        }
        let values = arrays.map { $0.values }
        let sums = values[0].indices.map { i in
            values.map { $0[i % $0.count] }.reduce(0, +) * factor
        }
        let outputs = try content.outputs.mapValues { type in
            let array = try MLMultiArray(shape: arrays[0].shape, dataType: .init(named: type))
            array.values = sums
            return MLFeatureValue(multiArray: array)
        }
        return try MLDictionaryFeatureProvider(dictionary: outputs)
    }
}

extension MLMultiArray {
    /// In row-major order, one by one: slow and plain.
    fileprivate var values: [Double] {
        get { offsets.map { value(at: $0) } }
        set { for (offset, value) in zip(offsets, newValue) { store(value, at: offset) } }
    }

    private var offsets: [Int] {
        zip(shape, strides).reduce([0]) { found, axis in
            found.flatMap { start in (0..<axis.0.intValue).map { start + $0 * axis.1.intValue } }
        }
    }

    private func value(at offset: Int) -> Double {
        memory.withUnsafeBytes { bytes in
            let place = offset * dataType.bytes
            switch dataType {
            case .double: return bytes.load(fromByteOffset: place, as: Double.self)
            case .float32: return Double(bytes.load(fromByteOffset: place, as: Float.self))
            case .float16: return Double(bytes.load(fromByteOffset: place, as: Float16.self))
            case .int32: return Double(bytes.load(fromByteOffset: place, as: Int32.self))
            case .int8: return Double(bytes[place])
            }
        }
    }

    private func store(_ value: Double, at offset: Int) {
        memory.withUnsafeMutableBytes { bytes in
            let place = offset * dataType.bytes
            switch dataType {
            case .double: bytes.storeBytes(of: value, toByteOffset: place, as: Double.self)
            case .float32: bytes.storeBytes(of: Float(value), toByteOffset: place, as: Float.self)
            case .float16:
                bytes.storeBytes(of: Float16(value), toByteOffset: place, as: Float16.self)
            case .int32: bytes.storeBytes(of: Int32(value), toByteOffset: place, as: Int32.self)
            case .int8: bytes[place] = UInt8(value)
            }
        }
    }
}
