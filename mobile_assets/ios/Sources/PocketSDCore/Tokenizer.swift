import Foundation

/// A word that stands for token ids of its own (a textual inversion).
public struct AddedWord: Equatable, Sendable {
    public let word: String
    public let ids: [Int32]

    public init(word: String, ids: [Int32]) {
        self.word = word
        self.ids = ids
    }
}

/// Ids ready for the text encoder, and the end of the prompt that did not fit.
public struct Tokens: Equatable, Sendable {
    public let ids: [Int32]  // [length]
    public let cut: String
}

/// CLIP's tokenizer: lower-cased words, cut into byte-level BPE pieces, padded to a fixed length.
///
/// Works on bytes and scalars throughout: Swift's strings hold é and e + accent for the same.
public struct Tokenizer: Sendable {
    typealias Scalars = [Unicode.Scalar]

    /// A run of bytes, and whether a word ends with it.
    struct Piece: Hashable, Sendable {
        var bytes: [UInt8]
        var endsWord: Bool
    }

    struct Pair: Hashable, Sendable {
        let first: Piece
        let second: Piece
    }

    private static let marks = ["<|startoftext|>", "<|endoftext|>"]

    private let vocabulary: [Piece: Int32]
    private let ranks: [Pair: Int]
    private let specials: [(word: Scalars, ids: [Int32])]  // longest first
    private let start: Int32
    private let end: Int32
    private let length: Int

    public init(vocab: URL, merges: URL, length: Int, added: [AddedWord] = []) throws {
        do {
            let words = try JSONReading(JSON(parsing: contents(of: vocab))).entries()
            let lines = String(decoding: try contents(of: merges), as: UTF8.self)
            try self.init(vocabulary: words, merges: lines, length: length, added: added)
        } catch let error as PocketSDError where error.place == nil {
            let folder = vocab.deletingLastPathComponent()
            throw PocketSDError("cannot read the tokenizer, \(error.what)", at: folder)
        }
    }

    init(
        vocabulary words: [(name: String, value: JSONReading)], merges: String, length: Int,
        added: [AddedWord]
    ) throws {
        guard length >= 2 else { throw PocketSDError("\(length) tokens hold no prompt") }
        var marked: [Int32?] = [nil, nil]
        var vocabulary: [Piece: Int32] = [:]
        for (name, value) in words {
            if let index = Tokenizer.marks.firstIndex(of: name) {
                marked[index] = try tokenID(value)
            } else if let piece = Piece(spelt: name[...]) {
                vocabulary[piece] = try tokenID(value)
            }
        }
        guard let start = marked[0], let end = marked[1] else {
            throw PocketSDError("the vocabulary has no mark for start or end")
        }
        self.vocabulary = vocabulary
        (self.start, self.end, self.length) = (start, end, length)

        var ranks: [Pair: Int] = [:]
        let lines = merges.split(whereSeparator: \.isNewline).filter {
            !$0.hasPrefix("#version") && !$0.allSatisfy(\.isWhitespace)
        }
        for (rank, line) in lines.enumerated() {
            let pair = line.split(whereSeparator: \.isWhitespace)
            guard pair.count == 2, let first = Piece(spelt: pair[0]),
                let second = Piece(spelt: pair[1])
            else { throw PocketSDError("a merge is not a pair of pieces") }
            ranks[Pair(first: first, second: second)] = rank
        }
        self.ranks = ranks

        // An added word may take the place of a mark.
        let marks = zip(Tokenizer.marks, [start, end]).map { AddedWord(word: $0, ids: [$1]) }
        let taken = Set(added.map(\.word))
        specials = (marks.filter { !taken.contains($0.word) } + added)
            .map { (Scalars($0.word.unicodeScalars), $0.ids) }
            .sorted { $0.word.count > $1.word.count }
        guard specials.allSatisfy({ !$0.word.isEmpty }) else {
            throw PocketSDError("an added word is empty")
        }
    }

    public func callAsFunction(_ prompt: String) -> Tokens {
        let pieces = pieces(of: normalised(prompt))
        let kept = pieces.prefix(length - 2)
        let padding = [Int32](repeating: end, count: length - 1 - kept.count)
        let cut = pieces.dropFirst(length - 2).map(\.text).joined()
        return Tokens(ids: [start] + kept.map(\.id) + padding, cut: trimmed(cut))
    }

    /// Each token's id with the text it stands for (for the message about what was cut).
    private func pieces(of prompt: Scalars) -> [(id: Int32, text: String)] {
        var found: [(Int32, String)] = []
        var plain = 0  // where the text since the last special word begins
        var position = 0
        func flush() {
            for word in words(in: Array(prompt[plain..<position])) {
                for piece in merged(word) {
                    found.append((vocabulary[piece] ?? end, piece.readable))
                }
            }
        }
        while position < prompt.count {
            if let special = specials.first(where: { prompt[position...].starts(with: $0.word) }) {
                flush()
                found += special.ids.map { ($0, " " + text(special.word)) }
                position += special.word.count
                plain = position
            } else {
                position += 1
            }
        }
        flush()
        return found
    }

    /// Joins the pair of lowest rank wherever it stands, until no pair has a rank.
    private func merged(_ word: Scalars) -> [Piece] {
        var pieces = text(word).utf8.map { Piece(bytes: [$0], endsWord: false) }
        pieces[pieces.count - 1].endsWord = true
        while pieces.count > 1 {
            let pairs = zip(pieces, pieces.dropFirst()).map { Pair(first: $0, second: $1) }
            let best = pairs.compactMap { pair in ranks[pair].map { (pair, $0) } }
                .min { $0.1 < $1.1 }
            guard let (pair, _) = best else { break }
            var joined: [Piece] = []
            var index = 0
            while index < pieces.count {
                if index < pairs.count, pairs[index] == pair {
                    let bytes = pair.first.bytes + pair.second.bytes
                    joined.append(Piece(bytes: bytes, endsWord: pair.second.endsWord))
                    index += 2
                } else {
                    joined.append(pieces[index])
                    index += 1
                }
            }
            pieces = joined
        }
        return pieces
    }
}

extension Tokenizer.Piece {
    private static let wordEnd = "</w>"

    /// The bytes that GPT-2's printable stand-ins spell; nil for what they do not spell.
    fileprivate init?(spelt text: Substring) {
        endsWord = text.hasSuffix(Self.wordEnd)
        let stem = endsWord ? text.dropLast(Self.wordEnd.count) : text
        bytes = []
        for scalar in stem.unicodeScalars {
            guard let byte = Self.bytesByCharacter[scalar] else { return nil }
            bytes.append(byte)
        }
        if bytes.isEmpty { return nil }
    }

    fileprivate var readable: String {
        String(decoding: bytes, as: UTF8.self) + (endsWord ? " " : "")
    }

    /// A printable character for every byte: itself where it prints, else one from 256 upwards.
    private static let bytesByCharacter: [Unicode.Scalar: UInt8] = {
        var found: [Unicode.Scalar: UInt8] = [:]
        var next: UInt32 = 256
        for byte in UInt8.min...UInt8.max {
            if (33...126).contains(byte) || (161...172).contains(byte) || byte >= 174 {
                found[Unicode.Scalar(byte)] = byte
            } else {
                found[Unicode.Scalar(next)!] = byte
                next += 1
            }
        }
        return found
    }()
}

func tokenID(_ value: JSONReading) throws -> Int32 { Int32(try value.integer(0...Int(Int32.max))) }
