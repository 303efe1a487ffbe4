/// One file of a component and the names of what goes in and comes out. Tensors pass by name.
public struct Link: Equatable, Sendable {
    public let file: String
    public let inputs: [String]
    public let outputs: [String]
}

extension Component {
    /// The files to run one after the other, checked to fit together.
    public func chain() throws -> [Link] {
        let chain = try JSONReading(config, path: "\(name).config").member("chain")
        let links = try chain.list().map { link in
            Link(
                file: try link.member("file").string(),
                inputs: try link.member("inputs").list().map { try $0.string() },
                outputs: try link.member("outputs").list().map { try $0.string() })
        }
        var known = Set(inputs.map(\.name))
        for link in links {
            // An .mlpackage is a folder: the package lists the files within.
            guard files.contains(where: { $0 == link.file || $0.hasPrefix(link.file + "/") }) else {
                throw PocketSDError(
                    "\(name) chains \(quoted(link.file)), which is none of its files")
            }
            if let missing = link.inputs.first(where: { !known.contains($0) }) {
                throw PocketSDError(
                    "\(link.file) wants \(quoted(missing)), which nothing before makes")
            }
            known.formUnion(link.outputs)
        }
        if let missing = outputs.map(\.name).first(where: { !known.contains($0) }) {
            throw PocketSDError("no file of \(name) makes \(quoted(missing))")
        }
        return links
    }

    /// By size as "WIDTHxHEIGHT", the functions of a multi-function model; else none.
    func functions() throws -> [(name: String, value: JSONReading)] {
        try JSONReading(config, path: "\(name).config").optional("functions")?.entries() ?? []
    }

    /// The function that draws this size; nil where there is only one.
    public func function(height: Int, width: Int) throws -> String? {
        let size = "\(width)x\(height)", have = try functions()
        if have.isEmpty { return nil }
        guard let found = have.first(where: { $0.name == size }) else {
            let names = have.map(\.name).joined(separator: ", ")
            throw PocketSDError("\(name) has no function for \(size) (it has \(names))")
        }
        return try found.value.string()
    }
}

/// For each link, the tensors that can be freed once it has run.
public func lastUses(_ links: [Link], results: Set<String>) -> [Set<String>] {
    links.indices.map { index in
        let later = Set(links[(index + 1)...].flatMap(\.inputs)).union(results)
        return Set(links[index].inputs + links[index].outputs).subtracting(later)
    }
}
