import Foundation
import XCTest

@testable import PocketSDCore

final class TokenizerTests: XCTestCase {
    private let files = Golden.assets.appendingPathComponent("tiny-sd/tokenizer")

    private func tokenizer(_ golden: JSONReading, _ name: String, _ added: JSONReading) throws
        -> Tokenizer
    {
        let words = try added.entries().map { AddedWord(word: $0, ids: try $1.list().map(tokenID)) }
        let length = try golden.member("length").integer(2...1000)
        if name == "tiny-sd" {
            return try Tokenizer(
                vocab: files.appendingPathComponent("vocab.json"),
                merges: files.appendingPathComponent("merges.txt"), length: length, added: words)
        }
        let learned = try golden.member("learned")
        let vocab = JSONReading(try JSON(parsing: Array(learned.member("vocab").string().utf8)))
        return try Tokenizer(
            vocabulary: vocab.entries(), merges: learned.member("merges").string(), length: length,
            added: words)
    }

    func testEveryPromptGivesPythonsIds() throws {
        let golden = try Golden.read("tokenizer")
        let cases = try golden.member("cases").list()
        XCTAssertGreaterThan(cases.count, 50)
        for example in cases {
            let prompt = try example.member("prompt").string()
            let name = try example.member("tokenizer").string()
            let tokens = try tokenizer(golden, name, example.member("added"))(prompt)
            XCTAssertEqual(tokens.ids.map(Int.init), try example.member("ids").integers(), prompt)
            XCTAssert(
                tokens.cut.utf8.elementsEqual(try example.member("cut").string().utf8), prompt)
        }
    }

    /// Normal form, case and the kinds of characters, for all of Unicode 3.2.
    func testEveryCharacterIsReadAsPythonReadsIt() throws {
        let golden = try Golden.read("tokenizer").member("characters")
        var pages: [Int: [UInt8]] = [:]
        for range in try golden.member("ranges").list() {
            let ends = try range.integers()
            for code in ends[0]...ends[1] {
                let c = String(Character(Unicode.Scalar(UInt32(code))!))
                let found = normalised("\(c)a\(c)\u{301}'\(c)7\(c)")
                let parts = [found] + words(in: found)
                let line = Array(parts.map { Array(text($0).utf8) }.joined(separator: [0])) + [1]
                pages[code >> 12, default: []] += line
            }
        }
        for entry in try golden.member("crc32").list() {
            let wanted = try entry.integers()
            XCTAssertEqual(Int(crc32(pages[wanted[0]] ?? [])), wanted[1], "page \(wanted[0])")
        }
    }

    func testHeapsOfMarksAreSortedAndJoined() throws {
        for example in try Golden.read("tokenizer").member("characters").member("composed").list() {
            let pair = try example.list(of: 2).map { Array(try $0.string().unicodeScalars) }
            XCTAssertEqual(Canonical.composed(text(pair[0])), pair[1])
            XCTAssertEqual(Canonical.composed(text(pair[1])), pair[1])
        }
    }

    func testWhatIsNoTokenizerIsRefused() throws {
        let folder = try temporaryFolder(self)
        let vocab = folder.appendingPathComponent("vocab.json")
        let merges = folder.appendingPathComponent("merges.txt")
        func open(_ words: String, _ pairs: String, added: [AddedWord] = []) throws {
            try Data(words.utf8).write(to: vocab)
            try Data(pairs.utf8).write(to: merges)
            _ = try Tokenizer(vocab: vocab, merges: merges, length: 77, added: added)
        }
        let marks = #""<|startoftext|>":0,"<|endoftext|>":1"#
        XCTAssertNoThrow(try open("{\(marks)}", "#version: 0.2\na b\n"))
        assertRefused("not JSON") { try open("{", "") }
        assertRefused("is not an object") { try open("[]", "") }
        assertRefused("no mark") { try open(#"{"a":0}"#, "") }
        assertRefused("not an integer") { try open(#"{\#(marks),"a":1e3}"#, "") }
        assertRefused("not an integer") { try open(#"{\#(marks),"a":-1}"#, "") }
        assertRefused("not an integer") { try open(#"{\#(marks),"a":2147483648}"#, "") }
        assertRefused("not a pair") { try open("{\(marks)}", "a b c\n") }
        assertRefused("not a pair") { try open("{\(marks)}", "a \u{4e00}\n") }
        assertRefused("added word is empty") {
            try open("{\(marks)}", "", added: [AddedWord(word: "", ids: [5])])
        }
        try FileManager.default.removeItem(at: merges)
        assertRefused("no such file") {
            _ = try Tokenizer(vocab: vocab, merges: merges, length: 77)
        }
    }

    func testShortAndEmptyTokenLists() throws {
        for length in [2, 3] {
            let tokens = try Tokenizer(
                vocab: files.appendingPathComponent("vocab.json"),
                merges: files.appendingPathComponent("merges.txt"), length: length)("red square")
            XCTAssertEqual(tokens.ids.count, length)
            XCTAssertEqual(tokens.cut, length == 2 ? "red square" : "square")
        }
        assertRefused("hold no prompt") {
            _ = try Tokenizer(
                vocab: files.appendingPathComponent("vocab.json"),
                merges: files.appendingPathComponent("merges.txt"), length: 1)
        }
    }
}
