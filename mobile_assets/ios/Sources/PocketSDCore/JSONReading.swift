/// A value on its way out of a file that may be damaged: every step says what it expects, and a
/// wrong turn is an error with the path that led there.
public struct JSONReading {
    public let value: JSON
    let path: String

    public init(_ value: JSON, path: String = "") {
        self.value = value
        self.path = path
    }

    public func member(_ name: String) throws -> JSONReading {
        guard let found = try optional(name) else { throw wrong("has no \(name)") }
        return found
    }

    /// nil where the member is missing or null. Of two with one name the last counts, as in Python.
    public func optional(_ name: String) throws -> JSONReading? {
        guard case .object(let members) = value else { throw wrong("is not an object") }
        let found = members.last { $0.name.utf8.elementsEqual(name.utf8) }
        guard let found, found.value != .null else { return nil }
        return JSONReading(found.value, path: path.isEmpty ? name : "\(path).\(name)")
    }

    public func entries() throws -> [(name: String, value: JSONReading)] {
        guard case .object(let members) = value else { throw wrong("is not an object") }
        return members.map { ($0.name, JSONReading($0.value, path: "\(path).\($0.name)")) }
    }

    public func list() throws -> [JSONReading] {
        guard case .array(let values) = value else { throw wrong("is not a list") }
        return values.enumerated().map { JSONReading($1, path: "\(path)[\($0)]") }
    }

    public func list(of count: Int) throws -> [JSONReading] {
        let found = try list()
        guard found.count == count else { throw wrong("has \(found.count) entries, not \(count)") }
        return found
    }

    public func string() throws -> String {
        guard case .string(let text) = value else { throw wrong("is not a text") }
        return text
    }

    public func bool() throws -> Bool {
        guard case .bool(let value) = value else { throw wrong("is neither true nor false") }
        return value
    }

    public func integer(_ range: ClosedRange<Int>) throws -> Int {
        guard case .number(let spelling) = value, let found = Int(spelling), range.contains(found)
        else { throw wrong("is not an integer within \(range.lowerBound) .. \(range.upperBound)") }
        return found
    }

    /// Finite, as nothing else can be calculated with.
    public func number() throws -> Double {
        guard case .number(let spelling) = value, let found = Double(spelling), found.isFinite
        else { throw wrong("is not a number") }
        return found
    }

    public func numbers() throws -> [Double] { try list().map { try $0.number() } }

    public func wrong(_ what: String) -> PocketSDError {
        PocketSDError("\(path.isEmpty ? "it" : quoted(path)) \(what)")
    }
}
