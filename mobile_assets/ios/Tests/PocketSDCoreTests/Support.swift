import Foundation
import XCTest

@testable import PocketSDCore

/// Golden vectors: what the Python implementations answer (tools/golden.py).
enum Golden {
    /// This file is mobile_assets/ios/Tests/PocketSDCoreTests/Support.swift.
    static let assets = URL(fileURLWithPath: #filePath)
        .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent()

    static func read(_ name: String) throws -> JSONReading {
        let file = assets.appendingPathComponent("golden/\(name).json")
        return JSONReading(try JSON(parsing: contents(of: file)))
    }
}

extension JSONReading {
    func floats() throws -> [Float] { try numbers().map { Float($0) } }
    func integers() throws -> [Int] { try list().map { try $0.integer(Int.min...Int.max) } }
    func bytes() throws -> [UInt8] { try integers().map { UInt8($0) } }
    func data() throws -> [UInt8] { [UInt8](try XCTUnwrap(Data(base64Encoded: try string()))) }

    /// 64 bits as a decimal text.
    func word() throws -> UInt64 { try XCTUnwrap(UInt64(try string())) }
}

/// A folder that is gone after the test.
func temporaryFolder(_ test: XCTestCase) throws -> URL {
    let folder = FileManager.default.temporaryDirectory
        .appendingPathComponent("pocketsd-\(UUID().uuidString)")
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    test.addTeardownBlock { try? FileManager.default.removeItem(at: folder) }
    return folder
}

/// The golden package for the fake engine, written out; `batch` is the UNet's: any, 1 or 2.
func fakePackage(_ test: XCTestCase, batch: String = "any") throws -> URL {
    let golden = try Golden.read("package")
    let folder = try temporaryFolder(test)
    for (name, text) in try golden.member("files").entries() {
        let file = folder.appendingPathComponent(name)
        try FileManager.default.createDirectory(
            at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
        try Data(try text.string().utf8).write(to: file)
    }
    let manifest = try golden.member("manifests").member(batch).string()
    try Data(manifest.utf8).write(to: folder.appendingPathComponent("manifest.json"))
    return folder
}

/// A manifest's text with a digest that fits, so that what is wrong in it is looked at.
func signed(_ manifest: JSON) -> Data {
    guard case .object(let members) = manifest else { return Data(manifest.compact.utf8) }
    let content = members.filter { $0.name != "sha256" }
    let digest = JSON.Member("sha256", .string(sha256(JSON.object(content).compact.utf8)))
    let all = (content + [digest]).sorted { $0.name.utf8.lexicographicallyPrecedes($1.name.utf8) }
    return Data(JSON.object(all).indented.utf8)
}

func assertClose(
    _ found: [Float], _ wanted: [Float], relative: Float, absolute: Float, _ what: String = "",
    file: StaticString = #filePath, line: UInt = #line
) {
    XCTAssertEqual(found.count, wanted.count, what, file: file, line: line)
    let worst = zip(found, wanted).map { abs($0 - $1) - (absolute + relative * abs($1)) }.max() ?? 0
    XCTAssertLessThanOrEqual(worst, 0, what, file: file, line: line)
}

/// The error is ours and one short line.
func assertRefused(
    _ containing: String = "", _ body: () throws -> Void, file: StaticString = #filePath,
    line: UInt = #line
) {
    XCTAssertThrowsError(try body(), file: file, line: line) { error in
        XCTAssert(error is PocketSDError, "\(type(of: error)): \(error)", file: file, line: line)
        let text = "\(error)"
        XCTAssert(containing.isEmpty || text.contains(containing), text, file: file, line: line)
        XCTAssertFalse(text.contains("\n"), text, file: file, line: line)
    }
}

/// Every way to put something else in the place of one value of a JSON text.
func mutations(of json: JSON, into others: [JSON] = strangers) -> [JSON] {
    var found = others.filter { $0 != json }
    switch json {
    case .array(let values):
        for (index, value) in values.enumerated() {
            let variants = mutations(of: value, into: others)
            found += variants.map { .array(values.replacing(index, with: $0)) }
        }
        if !values.isEmpty { found.append(.array(Array(values.dropLast()))) }
    case .object(let members):
        for (index, member) in members.enumerated() {
            let variants = mutations(of: member.value, into: others)
            found += variants.map {
                .object(members.replacing(index, with: JSON.Member(member.name, $0)))
            }
            found.append(.object(members.filter { $0 != member }))
        }
    default: break
    }
    return found
}

let strangers: [JSON] = [
    .null, .bool(true), .number("-1"), .number("0"), .number("1.5"), .number("1e999"),
    .number("9223372036854775807"), .number("123456789012345678901234567890"), .string(""),
    .string("../../etc/passwd"), .array([]), .object([]),
]

extension Array {
    fileprivate func replacing(_ index: Int, with element: Element) -> [Element] {
        var copy = self
        copy[index] = element
        return copy
    }
}
