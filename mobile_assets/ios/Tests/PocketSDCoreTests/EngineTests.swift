import Foundation
import XCTest

@testable import PocketSDCore

/// What stands between the loop and an engine: tensors, layouts in memory, chains of files.
final class EngineTests: XCTestCase {
    func testTensors() throws {
        let tensor = try Tensor(shape: [2, 3], [1, 2, 3, 4, 5, 6])
        XCTAssertEqual(try tensor.rows([1, 1, 0]).floats(), [4, 5, 6, 4, 5, 6, 1, 2, 3])
        let ids = try Tensor(shape: [2, 1], .int32([7, 8]))
        XCTAssertEqual(try ids.rows([1]).values, .int32([8]))
        assertRefused("int32 where float32") { _ = try ids.floats() }
        for shape in [[5], [-2, -3], [Int.max, 2], [1 << 32, 1 << 32], [0, .max, .max]] {
            assertRefused("do not make a tensor") {
                _ = try Tensor(shape: shape, [1, 2, 3, 4, 5, 6])
            }
        }
        XCTAssertEqual(elementCount([]), 1)
        XCTAssertEqual(elementCount([3, 0]), 0)
        XCTAssertNil(elementCount([1 << 20, 1 << 20]))
    }

    func testLayoutsWithGaps() throws {
        let tensor = try Tensor(shape: [2, 3, 2], (0..<12).map { Float($0) - 5.5 })
        let strides = [[6, 2, 1], [64, 16, 1], [1, 2, 6], [40, 4, 2]]
        for (element, size) in [(StridedLayout.Element.float16, 2), (.float32, 4), (.float64, 8)] {
            for steps in strides {
                let layout = try StridedLayout(shape: [2, 3, 2], strides: steps, element: element)
                let last = zip([1, 2, 1], steps).map { $0 * $1 }.reduce(0, +)
                var memory = [UInt8](repeating: 0xAB, count: (last + 1) * size)
                try memory.withUnsafeMutableBytes { try layout.write(tensor, to: $0) }
                XCTAssertEqual(try memory.withUnsafeBytes { try layout.read($0) }, tensor)
                let untouched = memory.filter { $0 == 0xAB }.count
                XCTAssertGreaterThanOrEqual(untouched, memory.count - 12 * size)
                assertRefused("too few") {
                    _ = try memory.dropLast().withUnsafeBytes { try layout.read($0) }
                }
            }
        }
        let ids = try Tensor(shape: [3], .int32([1, -2, .max]))
        let layout = try StridedLayout(shape: [3], strides: [2], element: .int32)
        var memory = [Int32](repeating: 0, count: 5)
        try memory.withUnsafeMutableBytes { try layout.write(ids, to: $0) }
        XCTAssertEqual(memory, [1, 0, -2, 0, .max])
        XCTAssertEqual(try memory.withUnsafeBytes { try layout.read($0) }, ids)
    }

    func testLayoutsOfOneValueOrNone() throws {
        let scalar = try StridedLayout(shape: [], strides: [], element: .float32)
        var memory: [Float] = [0]
        try memory.withUnsafeMutableBytes { try scalar.write(Tensor(shape: [], [4]), to: $0) }
        XCTAssertEqual(memory, [4])
        let none = try StridedLayout(shape: [2, 0], strides: [1, 1], element: .float32)
        XCTAssertEqual(
            try [Float]().withUnsafeBytes { try none.read($0) }, try Tensor(shape: [2, 0], []))
    }

    func testLayoutsThatCannotBe() throws {
        for (shape, strides) in [
            ([2], [1, 1]), ([2], [-1]), ([-2], [1]), ([.max], [1]), ([2, 2], [.max, .max]),
            ([1 << 30], [1 << 30]),
        ] {
            assertRefused("no tensor") {
                _ = try StridedLayout(shape: shape, strides: strides, element: .float16)
            }
        }
        let layout = try StridedLayout(shape: [2], strides: [1], element: .int32)
        var memory: [Int32] = [0, 0]
        memory.withUnsafeMutableBytes { bytes in
            assertRefused("int32 is needed") {
                try layout.write(Tensor(shape: [2], [1, 2]), to: bytes)
            }
            assertRefused("does not fit") {
                try layout.write(Tensor(shape: [1], .int32([1])), to: bytes)
            }
        }
    }

    private func component(_ config: String, files: [String]) throws -> Component {
        func spec(_ name: String) -> TensorSpec {
            TensorSpec(name: name, shape: [1], dtype: "float32")
        }
        return Component(
            name: "unet", files: files, inputs: [spec("latent"), spec("embedding")],
            outputs: [spec("noise")], config: try JSON(parsing: Array(config.utf8)))
    }

    private func link(_ file: String, _ inputs: String, _ outputs: String) -> String {
        #"{"file":"\#(file)","inputs":[\#(inputs)],"outputs":[\#(outputs)]}"#
    }

    func testChains() throws {
        let first = link("unet-0.mlpackage", #""latent""#, #""h","skip""#)
        let second = link("unet-1.mlpackage", #""h","skip","embedding""#, #""noise""#)
        let files = ["unet-0.mlpackage/Manifest.json", "unet-1.mlpackage/Data/model.mlmodel"]
        let links = try component("{\"chain\":[\(first),\(second)]}", files: files).chain()
        XCTAssertEqual(links.map(\.file), ["unet-0.mlpackage", "unet-1.mlpackage"])
        XCTAssertEqual(
            lastUses(links, results: ["noise"]), [["latent"], ["h", "skip", "embedding"]])
        XCTAssertEqual(lastUses(links, results: ["noise", "skip"])[1], ["h", "embedding"])

        func refuse(_ message: String, _ config: String, files: [String] = files) {
            assertRefused(message) { _ = try component(config, files: files).chain() }
        }
        refuse("has no chain", "{}")
        refuse("is not a list", #"{"chain":{}}"#)
        refuse("'unet.config.chain[0]' has no file", #"{"chain":[{}]}"#)
        refuse("none of its files", "{\"chain\":[\(first),\(second)]}", files: ["unet-0.mlpackage"])
        refuse("none of its files", "{\"chain\":[\(link("unet-0", "", ""))]}")
        refuse("wants 'h'", "{\"chain\":[\(second),\(first)]}")
        refuse("no file of unet makes 'noise'", "{\"chain\":[\(first)]}")
        refuse("no file of unet makes 'noise'", #"{"chain":[]}"#)
    }

    func testFunctionsOfSeveralSizes() throws {
        let several = try component(
            #"{"functions":{"768x512":"wide","512x512":"square"}}"#, files: [])
        XCTAssertEqual(try several.function(height: 512, width: 768), "wide")
        assertRefused("no function for 64x64 (it has 768x512, 512x512)") {
            _ = try several.function(height: 64, width: 64)
        }
        XCTAssertNil(try component("{}", files: []).function(height: 8, width: 8))
        assertRefused("is not an object") {
            _ = try component(#"{"functions":3}"#, files: []).function(height: 8, width: 8)
        }
    }

    func testInputsAreCheckedByNameShapeAndType() throws {
        let component = try component("{}", files: [])
        let right = try Tensor(shape: [1], [0])
        XCTAssertNoThrow(try component.check(["latent": right, "embedding": right]))
        assertRefused("unet takes") { try component.check(["latent": right]) }
        assertRefused("unet takes latent as float32 [1], got float32 [2]") {
            try component.check(["latent": Tensor(shape: [2], [0, 0]), "embedding": right])
        }
        assertRefused("got int32 [1]") {
            try component.check(["latent": right, "embedding": Tensor(shape: [1], .int32([0]))])
        }
    }
}
