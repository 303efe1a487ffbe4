import Foundation
import XCTest

@testable import PocketSDCore

/// Packages that are whole, and what happens with those that are not.
final class PackageTests: XCTestCase {
    private func manifest(_ folder: URL) -> URL { folder.appendingPathComponent("manifest.json") }

    func testAPackageMadeByPythonIsRead() throws {
        for batch in ["any", "1", "2"] {
            let package = try Package(opening: fakePackage(self, batch: batch))
            XCTAssertEqual(package.manifest.target, "fake")
            XCTAssertEqual(
                package.manifest.model, "fake \"model\" \\ é 日本 🐈 \0\u{1f}\u{7f}\u{2028}/\n\t")
            XCTAssertEqual(package.manifest.picture.latentChannels, 4)
            XCTAssertEqual(try package.manifest.component("unet").batch, Int(batch))
            XCTAssertEqual(
                package.manifest.tokenizer.added, [AddedWord(word: "<cat>", ids: [900, 901])])
            XCTAssertEqual(try package.table("lcm", steps: 4).steps, 4)
            XCTAssertEqual(package.bytes, package.manifest.files.values.map(\.bytes).reduce(0, +))
        }
    }

    /// POCKETSD_PACKAGE names a package that `pocketsd convert` made of a real model.
    func testARealPackageIsRead() throws {
        guard let place = ProcessInfo.processInfo.environment["POCKETSD_PACKAGE"] else {
            throw XCTSkip("POCKETSD_PACKAGE names no package")
        }
        let package = try Package(opening: URL(fileURLWithPath: place), check: false)
        var seen = 0
        try package.checkHashes { seen += $0 }
        XCTAssertEqual(seen, package.bytes)
        XCTAssertEqual(
            package.manifest.components.map(\.name).sorted(),
            ["text_encoder", "unet", "vae_decoder", "vae_encoder"])
        for name in package.manifest.samplers.keys {
            let parts = name.split(separator: "/")
            let steps = try XCTUnwrap(Int(parts[1]))
            XCTAssertEqual(try package.table(String(parts[0]), steps: steps).steps, steps)
        }
        if package.manifest.target == "coreml" {
            for component in package.manifest.components {
                XCTAssertFalse(try component.chain().isEmpty)
            }
        }
        XCTAssertEqual(try package.tokenizer()("a red circle").ids.count, 77)
        XCTAssertEqual(package.manifest.picture.preview.count, 3)
    }

    func testEveryFlippedByteOfAManifestIsNoticed() throws {
        let content = [UInt8](try Data(contentsOf: manifest(fakePackage(self))))
        for position in stride(from: 0, to: content.count, by: 7) {
            var copy = content
            copy[position] ^= 1 << UInt8(position % 7)
            assertRefused { _ = try Manifest(parsing: copy) }
        }
        assertRefused { _ = try Manifest(parsing: content + [0x20]) }
        for end in stride(from: 0, to: content.count, by: 31) {
            assertRefused { _ = try Manifest(parsing: Array(content[..<end])) }
        }
    }

    func testFilesThatAreNotAsListed() throws {
        let folder = try fakePackage(self)
        let file = folder.appendingPathComponent("unet.bin")
        let content = try Data(contentsOf: file)

        var flipped = content
        flipped[3] ^= 1
        try flipped.write(to: file)
        assertRefused("unet.bin does not match its sha256") { _ = try Package(opening: folder) }
        XCTAssertNoThrow(try Package(opening: folder, check: false))

        try content.dropLast().write(to: file)
        assertRefused("instead of") { _ = try Package(opening: folder, check: false) }

        try FileManager.default.removeItem(at: file)
        assertRefused("unet.bin is missing") { _ = try Package(opening: folder) }

        try FileManager.default.createDirectory(at: file, withIntermediateDirectories: false)
        assertRefused("unet.bin is missing") { _ = try Package(opening: folder) }

        try FileManager.default.removeItem(at: manifest(folder))
        assertRefused("not a package") { _ = try Package(opening: folder) }
        assertRefused("not a package") {
            _ = try Package(opening: folder.appendingPathComponent("nowhere"))
        }
    }

    func testLinksOutOfThePackageAreRefused() throws {
        let folder = try fakePackage(self)
        let file = folder.appendingPathComponent("unet.bin")
        let outside = try temporaryFolder(self).appendingPathComponent("unet.bin")
        try FileManager.default.moveItem(at: file, to: outside)
        try FileManager.default.createSymbolicLink(at: file, withDestinationURL: outside)
        assertRefused("leads out of the folder") { _ = try Package(opening: folder) }
    }

    func testNamesThatLeadElsewhereAreRefused() throws {
        let folder = try temporaryFolder(self)
        for name in [
            "", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", ".hidden", "-rf", "a/.b",
            "a\\b",
            "a b", "é", "a\0b", "a\n", "~", String(repeating: "a", count: 256),
        ] {
            assertRefused("unsafe file name") { _ = try inside(folder, name) }
        }
        for name in [
            "a", "unet-0.mlpackage/Data/com.apple.CoreML/weights/weight.bin", "_+.-x", "9",
        ] {
            XCTAssertNoThrow(try inside(folder, name))
        }
    }

    func testOtherVersionsAndOtherFiles() throws {
        let text = try JSON(parsing: [UInt8](Data(contentsOf: manifest(fakePackage(self)))))
        guard case .object(let members) = text else { return XCTFail("no object") }
        func with(_ name: String, _ value: JSON) -> [UInt8] {
            let others = members.filter { $0.name != name }
            return [UInt8](signed(.object(others + [JSON.Member(name, value)])))
        }
        assertRefused("newer than this PocketSD") {
            _ = try Manifest(parsing: with("version", .integer(2)))
        }
        assertRefused { _ = try Manifest(parsing: with("version", .integer(0))) }
        assertRefused("not a PocketSD manifest") {
            _ = try Manifest(parsing: with("format", .string("zip")))
        }
        assertRefused("not a PocketSD manifest") { _ = try Manifest(parsing: Array("{}".utf8)) }
        assertRefused("not a PocketSD manifest") { _ = try Manifest(parsing: Array("[1]".utf8)) }
        assertRefused("not JSON") { _ = try Manifest(parsing: []) }
        assertRefused("not UTF-8") { _ = try Manifest(parsing: [0x22, 0xFF, 0x22]) }
    }

    /// Something wrong in every place of a manifest in turn: read or refused, and what is read can
    /// be worked with.
    func testNothingInAManifestTraps() throws {
        let folder = try fakePackage(self)
        let text = try JSON(parsing: [UInt8](Data(contentsOf: manifest(folder))))
        var refused = 0
        let variants = mutations(of: text)
        for variant in variants {
            do {
                let manifest = try Manifest(reading: JSONReading(variant))
                let package = try Package(path: folder, manifest: manifest)
                var request = Request(prompt: "a <cat> in red")
                request.lowMemory = true
                _ = try Drawing(
                    request, engine: SilentEngine(package), package: package,
                    table: package.table("dpm++-2m", steps: 4)
                ).draw()
            } catch let error as PocketSDError {
                refused += 1
                XCTAssertFalse(error.description.contains("\n"))
            }
        }
        XCTAssertGreaterThan(variants.count, 2000)
        XCTAssertGreaterThan(refused, variants.count / 2)
    }

    func testNothingInATableTraps() throws {
        let tables = try Golden.read("sampler").member("tables").list()
        for golden in [tables[0], tables[3]] {  // dpm++-2m; pndm looks back four evaluations
            for variant in mutations(of: golden.value) {
                do {
                    let table = try SamplerTable(reading: JSONReading(variant))
                    for strength in [nil, 1, 0.75, 0.5, 0.25] {
                        let schedule = try strength.map(table.fromStrength) ?? table.fromNoise()
                        _ = try play(
                            schedule, from: [1, 2], evaluate: { x, _ in x }, noise: { _ in [0, 1] })
                    }
                } catch is PocketSDError {}
            }
        }
    }

    func testDamagedTables() throws {
        let table = try Golden.read("sampler").member("tables").list()[0].value
        guard case .object(let members) = table else { return XCTFail("no object") }
        func refuse(_ message: String, _ name: String, _ value: String) {
            assertRefused(message) {
                let others = members.filter { $0.name != name }
                let value = try JSON(parsing: Array(value.utf8))
                _ = try SamplerTable(
                    reading: JSONReading(.object(others + [JSON.Member(name, value)])))
            }
        }
        refuse("'rows' is empty", "rows", "[]")
        refuse("looks back 2 evaluations", "rows", "[[1,1,[1,1],[1],0,[1,0]]]")
        refuse("made of nothing", "rows", "[[1,1,[],[],0,[1,0]]]")
        refuse("is not a number", "rows", "[[1,1,[1e999],[1],0,[1,0]]]")
        refuse("has 1 entries, not 2", "rows", "[[1,1,[1],[1],0,[1]]]")
        refuse("has 4 entries, not 3", "steps", "3")
        refuse(
            "is not an integer within 0 .. 3", "starts",
            "[[4,1,1,[]],[0,1,1,[]],[0,1,1,[]],[0,1,1,[]]]")
        refuse(
            "past the last row", "starts", "[[0,1,1,[]],[0,1,1,[]],[0,1,1,[]],[3,1,1,\(twoRows)]]")
        refuse(
            "reaches before the start", "starts", "[[0,1,1,[]],[1,1,1,[]],[0,1,1,[]],[0,1,1,[]]]")
        refuse("is not a number", "initial_noise", "\"1\"")
    }

    private let twoRows = "[[1,1,[1],[1],0,[1,0]],[1,1,[1],[1],0,[1,0]]]"
}

/// Answers zeros of whatever shape was promised.
private final class SilentEngine: Engine {
    private let package: Package
    let settings = EngineSettings(engine: "silent", computeUnits: "cpuOnly")
    let compileSeconds: [String: Double] = [:]

    init(_ package: Package) {
        self.package = package
    }

    func load(_ component: String) throws { _ = try package.manifest.component(component) }
    func unload(_ component: String) {}

    func run(_ component: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        let output = try package.manifest.component(component).outputs[0]
        let batch = inputs.values.first?.shape.first ?? 1
        let sizes = [batch, 4, 16, 24]
        let shape = output.shape.enumerated().map { $1 ?? sizes[min($0, 3)] }
        guard let count = elementCount(shape), count < 1 << 20 else {
            throw PocketSDError("too large")
        }
        return [output.name: try Tensor(shape: shape, [Float](repeating: 0, count: count))]
    }
}
