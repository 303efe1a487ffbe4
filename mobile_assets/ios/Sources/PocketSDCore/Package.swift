import Foundation

/// A folder with everything that one model needs on one target, and a manifest that says so.
public struct Package: Sendable {
    public static let manifestName = "manifest.json"

    public let path: URL
    public let manifest: Manifest

    /// Reads a package and refuses what is not whole. `check: false` leaves the hashes for later.
    public init(opening path: URL, check: Bool = true) throws {
        let file = path.appendingPathComponent(Package.manifestName)
        guard regularFileSize(file) != nil else {
            throw PocketSDError(
                "not a package, it has no \(Package.manifestName)", at: path,
                mend: "`pocketsd convert` makes one")
        }
        let content = try contents(of: file, limit: 16 << 20)
        do {
            try self.init(path: path, manifest: Manifest(parsing: content))
        } catch let error as PocketSDError where error.place == nil {
            throw PocketSDError(error.what, at: file, mend: error.mend)
        }
        if check { try checkHashes() }
    }

    /// Every file is where the manifest says, and of its size.
    init(path: URL, manifest: Manifest) throws {
        (self.path, self.manifest) = (path, manifest)
        try checkFiles()
    }

    public func file(_ name: String) throws -> URL { try inside(path, name) }

    /// The sampler table stored for this scheduler and step count.
    public func table(_ sampler: String, steps: Int) throws -> SamplerTable {
        guard let name = manifest.samplers["\(sampler)/\(steps)"] else {
            let have = manifest.samplers.keys.sorted().joined(separator: ", ")
            throw PocketSDError(
                "no table for \(quoted(sampler)) in \(steps) steps (the package has \(have))",
                at: path, mend: "convert it again with --scheduler and --steps")
        }
        let file = try file(name)
        do {
            return try SamplerTable(reading: JSONReading(JSON(parsing: contents(of: file))))
        } catch let error as PocketSDError where error.place == nil {
            throw PocketSDError("not a sampler table: \(error.what)", at: file)
        }
    }

    public func tokenizer() throws -> Tokenizer {
        let spec = manifest.tokenizer
        return try Tokenizer(
            vocab: file(spec.vocab), merges: file(spec.merges), length: spec.length,
            added: spec.added)
    }

    /// Reads every file once; `advance` is told the bytes as they go by.
    public func checkHashes(advance: (Int) throws -> Void = { _ in }) throws {
        for (name, entry) in manifest.files.sorted(by: { $0.key < $1.key }) {
            guard try sha256(of: file(name), advance: advance) == entry.sha256 else {
                throw PocketSDError("damaged package, \(name) does not match its sha256", at: path)
            }
        }
    }

    /// The picture sizes built into it, as "WIDTHxHEIGHT"; none: any.
    public func sizes() throws -> [String] {
        let unet = try manifest.component("unet"), functions = try unet.functions()
        if !functions.isEmpty { return functions.map(\.name) }
        let latent = unet.inputs[0].shape
        let isFixed = latent.count > 2 && latent[2] != nil
        return isFixed ? ["\(manifest.picture.width)x\(manifest.picture.height)"] : []
    }

    public var bytes: Int { manifest.files.values.reduce(0) { $0 + $1.bytes } }

    private func checkFiles() throws {
        for (name, entry) in manifest.files.sorted(by: { $0.key < $1.key }) {
            guard let found = regularFileSize(try file(name)) else {
                throw PocketSDError("incomplete package, \(name) is missing", at: path)
            }
            guard found == entry.bytes else {
                throw PocketSDError(
                    "damaged package, \(name) has \(found) bytes instead of \(entry.bytes)",
                    at: path)
            }
        }
        let spec = manifest.tokenizer
        let needed =
            [spec.vocab, spec.merges] + manifest.samplers.values.sorted()
            + manifest.components.flatMap(\.files)
        for name in needed where !lists(name) {
            throw PocketSDError("incomplete package, \(quoted(name)) is not listed in it", at: path)
        }
    }

    /// A file, or a folder of files: an .mlpackage is one.
    private func lists(_ name: String) -> Bool {
        manifest.files[name] != nil || manifest.files.keys.contains { $0.hasPrefix(name + "/") }
    }
}
