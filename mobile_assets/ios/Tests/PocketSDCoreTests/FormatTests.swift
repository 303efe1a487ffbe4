import Foundation
import XCTest

@testable import PocketSDCore

/// JSON, SHA-256, PNG and halves: small formats with rules of their own.
final class FormatTests: XCTestCase {
    func testJSONIsReadAndWritten() throws {
        let text =
            #"{"a":[1,-2.50e+3,true,false,null,{}],"":"\" \\ \/ \b\f\n\r\t é \ud83d\ude00","b":[]}"#
        let json = try JSON(parsing: Array(text.utf8))
        XCTAssertEqual(
            json.compact,
            #"{"a":[1,-2.50e+3,true,false,null,{}],"":"\" \\ / \b\f\n\r\t é 😀","b":[]}"#)
        XCTAssertEqual(try JSON(parsing: Array(json.indented.utf8)), json)
        XCTAssertEqual(
            JSON.array([.double(.nan), .double(0.1), .integer(7)]).compact, "[null,0.1,7]")
        XCTAssertEqual(JSON.string("\u{1}\u{7f}").compact, "\"\\u0001\u{7f}\"")
        XCTAssertEqual(
            JSON.array([.object([]), .array([.null])]).indented, "[\n {},\n [\n  null\n ]\n]\n")
    }

    func testWhatIsNoJSONIsRefused() {
        for text in [
            "", " ", "{", "[", "[1", "[1,", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
            "{1:2}",
            "{a:1}", "tru", "nul", "True", "01", "+1", ".5", "1.", "1e", "1e+", "-", "--1", "0x1",
            "NaN",
            "\"", "\"\\\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "\"\\x\"", "\"\n\"", "1 2", "[] []", "\u{feff}1",
            String(repeating: "[", count: 100_000),
            String(repeating: "{\"a\":", count: 100_000),
        ] {
            assertRefused("not JSON") { _ = try JSON(parsing: Array(text.utf8)) }
        }
    }

    func testReadingSaysWhereItWentWrong() throws {
        let json = JSONReading(try JSON(parsing: Array(#"{"a":{"b":[1,"x",1.5]}}"#.utf8)))
        assertRefused("'a.b[1]' is not an integer within 0 .. 9") {
            _ = try json.member("a").member("b").list()[1].integer(0...9)
        }
        assertRefused("'a.b[2]' is not an integer") {
            _ = try json.member("a").member("b").list()[2].integer(0...9)
        }
        assertRefused("'a' has no c") { _ = try json.member("a").member("c") }
        assertRefused("'a.b' is not an object") { _ = try json.member("a").member("b").member("c") }
    }

    func testErrorsAreOneLine() {
        let error = PocketSDError(
            "two\nlines \u{1b}[31m", at: URL(fileURLWithPath: "/a b"), mend: "mend\r\nit")
        XCTAssertEqual(error.description, "/a b: two lines [31m (mend it)")
        XCTAssertEqual(quoted(String(repeating: "x", count: 500)).count, 82)
    }

    /// FIPS 180-4's own examples, and every length around the ends of a block.
    func testSHA256() throws {
        func plain(_ parts: [UInt8]...) -> String {
            var digest = PlainSHA256()
            for part in parts { digest.update(data: Data(part)) }
            return digest.finalize().map { String(format: "%02x", $0) }.joined()
        }
        let known = [
            "": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq":
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            String(repeating: "a", count: 1_000_000):
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
        ]
        for (text, digest) in known {
            XCTAssertEqual(plain(Array(text.utf8)), digest)
            XCTAssertEqual(sha256(text.utf8), digest)
        }
        for length in 0...200 {
            let bytes = (0..<length).map { UInt8(truncatingIfNeeded: $0 * 37) }
            let cut = length * 2 / 3
            XCTAssertEqual(plain(bytes), plain(Array(bytes[..<cut]), [], Array(bytes[cut...])))
        }
        let file = try temporaryFolder(self).appendingPathComponent("a")
        try Data(repeating: 0x61, count: 1_000_000).write(to: file)
        var seen = 0
        XCTAssertEqual(
            try sha256(of: file) { seen += $0 }, known[String(repeating: "a", count: 1_000_000)])
        XCTAssertEqual(seen, 1_000_000)
        assertRefused("cannot be read") { _ = try sha256(of: file.appendingPathExtension("b")) }
    }

    /// The file itself is checked by another reader: it is left in POCKETSD_PICTURES, if set.
    func testPNG() throws {
        let (height, width) = (150, 200)  // more than one stored block
        let pixels = (0..<height * width * 3).map { UInt8(truncatingIfNeeded: $0 * $0 / 7) }
        let png = try Picture(height: height, width: width, pixels: pixels).png()
        XCTAssertEqual(Array(png.prefix(8)), [0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x1A, 0x0A])
        XCTAssertEqual(crc32(Array("123456789".utf8)), 0xCBF4_3926)  // the check value of CRC-32
        if let folder = ProcessInfo.processInfo.environment["POCKETSD_PICTURES"] {
            try png.write(to: URL(fileURLWithPath: folder).appendingPathComponent("large.png"))
            let small = try Picture(height: 1, width: 1, pixels: [1, 2, 3])
            try small.png().write(
                to: URL(fileURLWithPath: folder).appendingPathComponent("small.png"))
        }
    }

    #if arch(arm64) || os(Linux)
    func testHalvesAreThoseOfTheProcessor() {
        for bits in UInt16.min...UInt16.max {
            let (found, wanted) = (Half.float(bits), Float(Float16(bitPattern: bits)))
            if wanted.isNaN {
                XCTAssert(found.isNaN)
                XCTAssert(Float16(bitPattern: Half.bits(found)).isNaN)
            } else {
                XCTAssertEqual(found.bitPattern, wanted.bitPattern)
                XCTAssertEqual(Half.bits(found), bits)
            }
        }
        var pattern: UInt32 = 1
        for _ in 0..<200_000 {
            pattern = pattern &* 1_664_525 &+ 1_013_904_223
            // Every fourth in the range of halves and close to a tie.
            let value = Float(
                bitPattern: pattern % 4 == 0 ? pattern & 0x8FFF_F000 | 0x3800_0000 : pattern)
            guard !value.isNaN else { continue }
            XCTAssertEqual(Half.bits(value), Float16(value).bitPattern, "\(value)")
        }
    }
    #endif
}
