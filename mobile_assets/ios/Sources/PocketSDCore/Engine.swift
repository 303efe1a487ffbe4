/// Engines run a package's components: tensors in by name, tensors out by name.
public protocol Engine: AnyObject {
    /// Makes a component ready; loading twice does nothing.
    func load(_ component: String) throws

    /// Runs a component that is loaded.
    func run(_ component: String, _ inputs: [String: Tensor]) throws -> [String: Tensor]

    /// Frees what a component holds.
    func unload(_ component: String)

    /// For the record: what it is, and how it was set.
    var settings: EngineSettings { get }

    /// What of the loading went into compiling, by component: only what had not been compiled yet.
    var compileSeconds: [String: Double] { get }
}

extension Component {
    /// Refuses inputs that the component did not declare, before they reach native code.
    public func check(_ given: [String: Tensor]) throws {
        let names = inputs.map(\.name).sorted()
        guard given.keys.sorted() == names else {
            throw PocketSDError("\(name) takes \(names), got \(given.keys.sorted())")
        }
        for spec in inputs {
            guard let tensor = given[spec.name], spec.fits(tensor) else {
                let got = given[spec.name].map { "\($0.values.dtype) \($0.shape)" } ?? "nothing"
                throw PocketSDError("\(name) takes \(spec), got \(got)")
            }
        }
    }
}

extension TensorSpec: CustomStringConvertible {
    func fits(_ tensor: Tensor) -> Bool {
        let sizes = zip(shape, tensor.shape).allSatisfy { $0 == nil || $0 == $1 }
        return shape.count == tensor.shape.count && sizes && dtype == tensor.values.dtype
    }

    public var description: String {
        let sizes = shape.map { $0.map(String.init) ?? "any" }.joined(separator: ", ")
        return "\(name) as \(dtype) [\(sizes)]"
    }
}
