/// Reads one JSON document from bytes that are known to be UTF-8.
struct JSONParser {
    let bytes: [UInt8]
    private var position = 0

    init(bytes: [UInt8]) {
        self.bytes = bytes
    }

    mutating func document() throws -> JSON {
        let value = try value(depth: 0)
        skipBlanks()
        guard position == bytes.count else { throw damaged("something follows the end") }
        return value
    }

    private mutating func value(depth: Int) throws -> JSON {
        guard depth <= JSON.deepest else { throw damaged("nested too deeply") }
        skipBlanks()
        switch peek {
        case UInt8(ascii: "{"): return .object(try members(depth: depth))
        case UInt8(ascii: "["): return .array(try elements(depth: depth))
        case UInt8(ascii: "\""): return .string(try string())
        case UInt8(ascii: "t"): return try word("true", .bool(true))
        case UInt8(ascii: "f"): return try word("false", .bool(false))
        case UInt8(ascii: "n"): return try word("null", .null)
        case nil: throw damaged("it ends too early")
        default: return .number(try number())
        }
    }

    private mutating func members(depth: Int) throws -> [JSON.Member] {
        var found: [JSON.Member] = []
        try list(closedBy: UInt8(ascii: "}")) { parser in
            parser.skipBlanks()
            guard parser.peek == UInt8(ascii: "\"") else {
                throw parser.damaged("a name is missing")
            }
            let name = try parser.string()
            parser.skipBlanks()
            guard parser.take(UInt8(ascii: ":")) else { throw parser.damaged("a colon is missing") }
            found.append(JSON.Member(name, try parser.value(depth: depth + 1)))
        }
        return found
    }

    private mutating func elements(depth: Int) throws -> [JSON] {
        var found: [JSON] = []
        try list(closedBy: UInt8(ascii: "]")) { parser in
            found.append(try parser.value(depth: depth + 1))
        }
        return found
    }

    private mutating func list(
        closedBy end: UInt8, item: (inout JSONParser) throws -> Void
    ) throws {
        position += 1  // the bracket that brought us here
        skipBlanks()
        if take(end) { return }
        repeat {
            try item(&self)
            skipBlanks()
        } while take(UInt8(ascii: ","))
        guard take(end) else { throw damaged("a list is not closed") }
    }

    private mutating func string() throws -> String {
        position += 1
        var content: [UInt8] = []
        while let byte = peek {
            position += 1
            switch byte {
            case UInt8(ascii: "\""): return String(decoding: content, as: UTF8.self)
            case UInt8(ascii: "\\"): content += try escape()
            case 0..<0x20: throw damaged("a control character within a string")
            default: content.append(byte)
            }
        }
        throw damaged("a string is not closed")
    }

    private static let escapes: [UInt8: UInt8] = [
        UInt8(ascii: "\""): UInt8(ascii: "\""), UInt8(ascii: "\\"): UInt8(ascii: "\\"),
        UInt8(ascii: "/"): UInt8(ascii: "/"), UInt8(ascii: "b"): 0x8, UInt8(ascii: "f"): 0xC,
        UInt8(ascii: "n"): 0xA, UInt8(ascii: "r"): 0xD, UInt8(ascii: "t"): 0x9,
    ]

    private mutating func escape() throws -> [UInt8] {
        guard let kind = peek else { throw damaged("a string is not closed") }
        position += 1
        if let byte = JSONParser.escapes[kind] { return [byte] }
        guard kind == UInt8(ascii: "u") else { throw damaged("an unknown escape") }
        var code = try codeUnit()
        if (0xD800..<0xDC00).contains(code) {  // the first half of a pair
            guard take(UInt8(ascii: "\\")), take(UInt8(ascii: "u")) else {
                throw damaged("half a character")
            }
            let second = try codeUnit()
            guard (0xDC00..<0xE000).contains(second) else { throw damaged("half a character") }
            code = 0x10000 + (code - 0xD800) << 10 + (second - 0xDC00)
        }
        guard let scalar = Unicode.Scalar(code) else { throw damaged("half a character") }
        return Array(String(Character(scalar)).utf8)
    }

    private mutating func codeUnit() throws -> UInt32 {
        let digits = bytes[position...].prefix(4)
        guard digits.count == 4, digits.allSatisfy({ Character(Unicode.Scalar($0)).isHexDigit }),
            let code = UInt32(String(decoding: digits, as: UTF8.self), radix: 16)
        else { throw damaged("an unknown escape") }
        position += 4
        return code
    }

    private mutating func number() throws -> String {
        let start = position
        _ = take(UInt8(ascii: "-"))
        guard let first = peek, isDigit(first) else { throw damaged("not a value") }
        if !take(UInt8(ascii: "0")) { skipDigits() }
        if take(UInt8(ascii: ".")) { try requireDigits() }
        if take(UInt8(ascii: "e")) || take(UInt8(ascii: "E")) {
            _ = take(UInt8(ascii: "+")) || take(UInt8(ascii: "-"))
            try requireDigits()
        }
        return String(decoding: bytes[start..<position], as: UTF8.self)
    }

    private mutating func requireDigits() throws {
        guard let first = peek, isDigit(first) else { throw damaged("a number ends too early") }
        skipDigits()
    }

    private mutating func skipDigits() {
        while let byte = peek, isDigit(byte) { position += 1 }
    }

    private func isDigit(_ byte: UInt8) -> Bool {
        (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte)
    }

    private mutating func word(_ text: String, _ value: JSON) throws -> JSON {
        guard bytes[position...].starts(with: text.utf8) else { throw damaged("not a value") }
        position += text.utf8.count
        return value
    }

    private var peek: UInt8? { position < bytes.count ? bytes[position] : nil }

    private mutating func take(_ byte: UInt8) -> Bool {
        guard peek == byte else { return false }
        position += 1
        return true
    }

    private mutating func skipBlanks() {
        while let byte = peek, [0x20, 0x9, 0xA, 0xD].contains(byte) { position += 1 }
    }

    private func damaged(_ what: String) -> PocketSDError {
        PocketSDError("not JSON: \(what) (byte \(position))")
    }
}
