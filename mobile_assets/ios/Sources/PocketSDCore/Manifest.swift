/// What a package's manifest.json says; `runtime_py/package.py` defines the format.
public struct Manifest: Sendable {
    public static let format = "pocketsd-package"
    public static let version = 1

    public let model: String
    public let target: String
    public let precision: String
    public let picture: PictureSpec
    public let tokenizer: TokenizerSpec
    public let components: [Component]
    public let samplers: [String: String]  // "euler/20" -> file
    public let defaultSampler: String
    public let files: [String: FileEntry]
    public let sha256: String  // the manifest's own, and so the whole package's

    public struct FileEntry: Equatable, Sendable {
        public let sha256: String
        public let bytes: Int
    }

    public func component(_ name: String) throws -> Component {
        guard let found = components.first(where: { $0.name == name }) else {
            let have = components.map(\.name).joined(separator: ", ")
            throw PocketSDError("the package has no \(name) (it has \(have))")
        }
        return found
    }
}

/// How latents and pictures relate. `preview` maps a latent's channels and 1 to RGB.
public struct PictureSpec: Equatable, Sendable {
    public let height: Int
    public let width: Int
    public let shrink: Int  // picture pixels per latent cell, along a side
    public let unit: Int  // what height and width must be multiples of
    public let latentChannels: Int
    public let preview: [[Float]]  // [3, latent channels + 1], or empty
}

/// `added` gives a prompt word (a textual inversion) its token ids.
public struct TokenizerSpec: Sendable {
    public let vocab: String
    public let merges: String
    public let length: Int
    public let added: [AddedWord]
}

/// One network: its files, what goes in and out, and whatever its engine has to know.
public struct Component: Sendable {
    public let name: String
    public let files: [String]
    public let inputs: [TensorSpec]
    public let outputs: [TensorSpec]
    public let config: JSON

    /// The batch that the component was built for; nil: any.
    var batch: Int? { inputs[0].shape[0] }
}

/// One named input or output. A size of nil may be anything.
public struct TensorSpec: Equatable, Sendable {
    public let name: String
    public let shape: [Int?]
    public let dtype: String
}

extension Manifest {
    /// The text is checked against its own digest: as it stands, down to the last blank.
    public init(parsing bytes: [UInt8]) throws {
        let text = try JSON(parsing: bytes)
        let head = JSONReading(text)
        guard case .object(let members) = text,
            try head.optional("format")?.value == .string(Manifest.format)
        else { throw PocketSDError("not a PocketSD manifest") }
        if let found = try? head.member("version").integer(0...Int.max), found > Manifest.version {
            throw PocketSDError(
                "package version \(found) is newer than this PocketSD, for \(Manifest.version)",
                mend: "update the app")
        }
        guard try head.member("version").integer(0...Int.max) == Manifest.version else {
            throw PocketSDError("a package version that was never written")
        }
        let signed = JSON.object(members.filter { $0.name != "sha256" })
        guard text.isSorted, Array(text.indented.utf8) == bytes,
            try head.member("sha256").string() == PocketSDCore.sha256(signed.compact.utf8)
        else { throw PocketSDError("damaged manifest, it does not match its own sha256") }
        try self.init(reading: head)
    }

    /// The members alone, each of them checked.
    init(reading head: JSONReading) throws {
        sha256 = try head.member("sha256").string()
        model = try head.member("model").string()
        target = try head.member("target").string()
        precision = try head.member("precision").string()
        picture = try PictureSpec(reading: head.member("picture"))
        tokenizer = try TokenizerSpec(reading: head.member("tokenizer"))
        components = try head.member("components").list().map(Component.init(reading:))
        samplers = try head.member("samplers").dictionary { try $0.string() }
        defaultSampler = try head.member("default_sampler").string()
        files = try head.member("files").dictionary(FileEntry.init(reading:))
    }
}

extension JSON {
    /// Whether all names stand in order, each once.
    fileprivate var isSorted: Bool {
        switch self {
        case .array(let values): return values.allSatisfy(\.isSorted)
        case .object(let members):
            let inOrder = zip(members, members.dropFirst()).allSatisfy {
                $0.name.utf8.lexicographicallyPrecedes($1.name.utf8)
            }
            return inOrder && members.allSatisfy(\.value.isSorted)
        default: return true
        }
    }
}

extension JSONReading {
    fileprivate func dictionary<Value>(
        _ read: (JSONReading) throws -> Value
    ) throws -> [String: Value] {
        try entries().reduce(into: [:]) { $0[$1.name] = try read($1.value) }
    }
}

extension Manifest.FileEntry {
    fileprivate init(reading entry: JSONReading) throws {
        sha256 = try entry.member("sha256").string()
        bytes = try entry.member("bytes").integer(0...1 << 40)
    }
}

extension PictureSpec {
    /// The bounds are far from any real model, and near enough to multiply safely.
    fileprivate init(reading picture: JSONReading) throws {
        height = try picture.member("height").integer(1...4096)
        width = try picture.member("width").integer(1...4096)
        shrink = try picture.member("shrink").integer(1...64)
        unit = try picture.member("unit").integer(1...4096)
        latentChannels = try picture.member("latent_channels").integer(1...64)
        let columns = latentChannels + 1
        let matrix = try picture.member("preview")
        preview = try matrix.list().map { row in
            try row.list(of: columns).map { Float(try $0.number()) }
        }
        guard [0, 3].contains(preview.count) else { throw matrix.wrong("has not three rows") }
        guard unit % shrink == 0 else { throw picture.wrong("has a unit that splits latent cells") }
    }
}

extension TokenizerSpec {
    fileprivate init(reading tokenizer: JSONReading) throws {
        vocab = try tokenizer.member("vocab").string()
        merges = try tokenizer.member("merges").string()
        length = try tokenizer.member("length").integer(2...4096)
        added =
            try tokenizer.optional("added")?.entries().map { word, ids in
                AddedWord(word: word, ids: try ids.list().map(tokenID))
            } ?? []
    }
}

extension Component {
    fileprivate init(reading component: JSONReading) throws {
        name = try component.member("name").string()
        files = try component.member("files").list().map { try $0.string() }
        inputs = try component.member("inputs").list().map(TensorSpec.init(reading:))
        outputs = try component.member("outputs").list().map(TensorSpec.init(reading:))
        config = try component.optional("config")?.value ?? .object([])
        guard !inputs.isEmpty, !outputs.isEmpty else {
            throw component.wrong("has no inputs or no outputs")
        }
    }
}

extension TensorSpec {
    fileprivate init(reading tensor: JSONReading) throws {
        name = try tensor.member("name").string()
        dtype = try tensor.member("dtype").string()
        let sizes = try tensor.member("shape")
        shape = try sizes.list().map { $0.value == .null ? nil : try $0.integer(1...1 << 20) }
        guard (1...8).contains(shape.count) else { throw sizes.wrong("has not 1 to 8 sizes") }
    }
}
