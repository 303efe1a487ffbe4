import Foundation

/// The one error that people see: a line that says what is wrong, where, and how to mend it.
public struct PocketSDError: Error, Equatable, Sendable {
    public let what: String
    public let place: String?
    public let mend: String?

    public init(_ what: String, at place: URL? = nil, mend: String? = nil) {
        self.what = what
        self.place = place?.path
        self.mend = mend
    }
}

extension PocketSDError: CustomStringConvertible, LocalizedError {
    public var description: String {
        let parts = [place.map { "\($0):" }, what, mend.map { "(\($0))" }]
        return oneLine(parts.compactMap { $0 }.joined(separator: " "))
    }

    public var errorDescription: String? { description }
}

/// Blanks and control characters become single spaces.
func oneLine(_ text: String) -> String {
    let unprintable = CharacterSet.whitespacesAndNewlines.union(.controlCharacters)
    return text.components(separatedBy: unprintable).filter { !$0.isEmpty }.joined(separator: " ")
}

/// Text from a file that we did not write, for a message.
func quoted(_ text: String) -> String {
    "'" + String(text.unicodeScalars.prefix(80).map(Character.init)) + "'"
}
