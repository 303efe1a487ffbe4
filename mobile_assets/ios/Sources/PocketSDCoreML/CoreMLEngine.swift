#if canImport(CoreML)
import CoreML
import Foundation
import PocketSDCore

/// Runs a package's components with Core ML: each one model, or a chain of them.
public final class CoreMLEngine: Engine {
    private let package: Package
    private let size: (height: Int, width: Int)  // picks the function of multi-function models
    private let computeUnits: ComputeUnits
    private let models: CompiledModels
    private var chains: [String: [(link: Link, model: MLModel)]] = [:]
    public private(set) var compileSeconds: [String: Double] = [:]

    public init(
        package: Package, height: Int, width: Int, computeUnits: ComputeUnits,
        models: CompiledModels? = nil
    ) throws {
        guard package.manifest.target == "coreml" else {
            throw PocketSDError(
                "this is a package for \(package.manifest.target)", at: package.path,
                mend: "convert with --target coreml")
        }
        (self.package, self.computeUnits) = (package, computeUnits)
        size = (height, width)
        self.models = try models ?? CompiledModels(package: package)
    }

    public var settings: EngineSettings {
        EngineSettings(engine: "coreml", computeUnits: computeUnits.rawValue)
    }

    public func load(_ component: String) throws {
        guard chains[component] == nil else { return }
        let described = try package.manifest.component(component)
        let function = try described.function(height: size.height, width: size.width)
        chains[component] = try described.chain().map { link in
            let file = try package.file(link.file)
            let (model, seconds) = try models.compiled(file, name: link.file)
            if let seconds { compileSeconds[component, default: 0] += seconds }
            return (link, try open(model, function: function, for: file))
        }
    }

    public func run(_ component: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        let described = try package.manifest.component(component)
        try described.check(inputs)
        try load(component)
        let chain = chains[component] ?? []
        let results = Set(described.outputs.map(\.name))
        let freed = lastUses(chain.map(\.link), results: results)
        // What one model gives goes to the next as it is, whatever its element type.
        var known = inputs.mapValues(Value.tensor)
        for ((link, model), done) in zip(chain, freed) {
            let answers = try pooled { try predict(model, link, known) }
            known.merge(answers) { $1 }
            for name in done { known[name] = nil }
        }
        return try known.filter { results.contains($0.key) }.mapValues { try $0.tensor() }
    }

    public func unload(_ component: String) {
        chains[component] = nil
    }

    private func open(_ compiled: URL, function: String?, for file: URL) throws -> MLModel {
        let configuration = MLModelConfiguration()
        configuration.computeUnits = computeUnits.forCoreML
        if let function {
            guard #available(iOS 18, macOS 15, *) else {
                throw PocketSDError(
                    "a model of several sizes needs iOS 18 or macOS 15", at: file,
                    mend: "convert for one size")
            }
            configuration.functionName = function
        }
        do {
            return try MLModel(contentsOf: compiled, configuration: configuration)
        } catch {
            throw PocketSDError(
                "Core ML cannot load it, \(error.localizedDescription)", at: file)
        }
    }

    private func predict(
        _ model: MLModel, _ link: Link, _ known: [String: Value]
    ) throws -> [String: Value] {
        let wanted = model.modelDescription.inputDescriptionsByName
        var features: [String: Any] = [:]
        for name in link.inputs {
            guard let type = wanted[name]?.multiArrayConstraint?.dataType,
                let value = known[name]
            else { throw PocketSDError("\(link.file) has no input \(name)", at: package.path) }
            features[name] = try value.feature(as: type)
        }
        let answers: MLFeatureProvider
        do {
            answers = try model.prediction(
                from: MLDictionaryFeatureProvider(dictionary: features))
        } catch {
            throw PocketSDError(
                "\(link.file) fails, \(error.localizedDescription)", at: package.path)
        }
        return try link.outputs.reduce(into: [:]) { found, name in
            guard let value = answers.featureValue(for: name), value.multiArrayValue != nil
            else {
                throw PocketSDError("\(link.file) gives no \(name)", at: package.path)
            }
            found[name] = .feature(value)
        }
    }
}

/// A tensor on its way in, or what a model gave.
private enum Value {
    case tensor(Tensor)
    case feature(MLFeatureValue)

    func feature(as type: MLMultiArrayDataType) throws -> MLFeatureValue {
        switch self {
        case .feature(let value): return value
        case .tensor(let tensor):
            return MLFeatureValue(multiArray: try MLMultiArray(tensor, as: type))
        }
    }

    func tensor() throws -> Tensor {
        switch self {
        case .tensor(let tensor): return tensor
        case .feature(let value):
            guard let array = value.multiArrayValue else {
                throw PocketSDError("not a multi-array")
            }
            return try array.tensor()
        }
    }
}

extension ComputeUnits {
    fileprivate var forCoreML: MLComputeUnits {
        switch self {
        case .all: return .all
        case .cpuAndNeuralEngine: return .cpuAndNeuralEngine
        case .cpuAndGPU: return .cpuAndGPU
        case .cpuOnly: return .cpuOnly
        }
    }
}

/// Core ML's temporary objects would otherwise live until the whole picture is done.
private func pooled<Result>(_ body: () throws -> Result) rethrows -> Result {
    #if canImport(ObjectiveC)
    return try autoreleasepool(invoking: body)
    #else
    return try body()
    #endif
}
#endif
