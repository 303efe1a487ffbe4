/// A JSON text as it stands: numbers keep their spelling, members their order.
///
/// A manifest carries the digest of its own text, so reading must lose nothing of it. And
/// Foundation's parser tells 1 from true only on some systems.
public enum JSON: Equatable, Sendable {
    case null
    case bool(Bool)
    case number(String)
    case string(String)
    case array([JSON])
    case object([Member])

    public struct Member: Equatable, Sendable {
        public let name: String
        public let value: JSON

        public init(_ name: String, _ value: JSON) {
            self.name = name
            self.value = value
        }
    }

    public static func integer(_ value: some BinaryInteger) -> JSON { .number("\(value)") }

    /// JSON has no word for NaN or infinity: null.
    public static func double(_ value: Double) -> JSON {
        value.isFinite ? .number("\(value)") : .null
    }

    /// Nothing nests deeper in what PocketSD writes; more would only be there to exhaust the stack.
    static let deepest = 64

    public init(parsing bytes: [UInt8]) throws {
        guard String(decoding: bytes, as: UTF8.self).utf8.elementsEqual(bytes) else {
            throw PocketSDError("not UTF-8")
        }
        var parser = JSONParser(bytes: bytes)
        self = try parser.document()
    }

    /// The text without blanks.
    public var compact: String {
        var text = ""
        write(to: &text, indent: nil)
        return text
    }

    /// The text with a line for every value, each level one blank further in.
    public var indented: String {
        var text = ""
        write(to: &text, indent: 0)
        return text + "\n"
    }

    private func write(to text: inout String, indent: Int?) {
        switch self {
        case .null: text += "null"
        case .bool(let value): text += value ? "true" : "false"
        case .number(let spelling): text += spelling
        case .string(let value): text += JSON.escaped(value)
        case .array(let values):
            JSON.write(values, within: "[]", to: &text, indent: indent) { value, text, inner in
                value.write(to: &text, indent: inner)
            }
        case .object(let members):
            JSON.write(members, within: "{}", to: &text, indent: indent) { member, text, inner in
                text += JSON.escaped(member.name) + (inner == nil ? ":" : ": ")
                member.value.write(to: &text, indent: inner)
            }
        }
    }

    private static func write<Item>(
        _ items: [Item], within brackets: String, to text: inout String, indent: Int?,
        each: (Item, inout String, Int?) -> Void
    ) {
        let inner = indent.map { $0 + 1 }
        func newLine(_ depth: Int?) {
            if let depth { text += "\n" + String(repeating: " ", count: depth) }
        }
        text.append(brackets.first!)
        for (index, item) in items.enumerated() {
            if index > 0 { text += "," }
            newLine(inner)
            each(item, &text, inner)
        }
        if !items.isEmpty { newLine(indent) }
        text.append(brackets.last!)
    }

    private static let shortEscapes: [Unicode.Scalar: String] = [
        "\"": "\\\"", "\\": "\\\\", "\u{8}": "\\b", "\u{c}": "\\f", "\n": "\\n", "\r": "\\r",
        "\t": "\\t",
    ]

    private static func escaped(_ value: String) -> String {
        var text = "\""
        for scalar in value.unicodeScalars {
            if let short = shortEscapes[scalar] {
                text += short
            } else if scalar.value < 0x20 {
                let digits = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            } else {
                text.unicodeScalars.append(scalar)
            }
        }
        return text + "\""
    }
}
