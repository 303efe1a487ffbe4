import Foundation
import XCTest

@testable import PocketSDCore

/// Whole pictures by the fake engine, against the same in Python.
final class DrawingTests: XCTestCase {
    /// Latents to 1e-5; a byte of a picture may round the other way.
    func testPicturesAreThoseOfPython() throws {
        let golden = try Golden.read("generation")
        for example in try golden.member("cases").list() {
            let batch = try example.member("package").string()
            let package = try Package(opening: fakePackage(self, batch: batch))
            let request = try request(example, golden)
            let engine = FakeEngine(package)
            let table = try package.table(
                try example.member("sampler").string(),
                steps: try example.member("steps").integer(1...9))
            let drawn = try Drawing(request, engine: engine, package: package, table: table).draw()

            let what = "batch \(batch), \(table.scheduler)"
            XCTAssertEqual(engine.calls, try calls(example.member("calls")), what)
            XCTAssertEqual(drawn.cut, try example.member("cut").string())
            assertClose(
                drawn.latents, try example.member("latents").floats(), relative: 1e-5,
                absolute: 1e-5,
                what)
            let pictures = try example.member("pictures").list().map { try $0.data() }
            XCTAssertEqual(drawn.pictures.count, pictures.count)
            for (found, wanted) in zip(drawn.pictures, pictures) {
                let steps = zip(found.pixels, wanted).map { abs(Int($0) - Int($1)) }
                XCTAssertEqual(steps.count, 16 * 24 * 3)
                XCTAssertLessThanOrEqual(steps.max() ?? 255, 1, what)
            }
            XCTAssertEqual(engine.held.isEmpty, request.lowMemory)
        }
    }

    private func request(_ example: JSONReading, _ golden: JSONReading) throws -> Request {
        var request = Request(prompt: try golden.member("prompt").string())
        request.negativePrompt = try example.member("negative_prompt").string()
        request.seeds = try example.member("seeds").list().map { try $0.word() }
        request.guidanceScale = try example.member("guidance_scale").number()
        request.strength = try example.member("strength").number()
        request.lowMemory = try example.member("low_memory").bool()
        if try example.member("from_image").bool() {
            let pixels = try golden.member("image").data()
            request.image = try Picture(height: 16, width: 24, pixels: pixels)
        }
        return request
    }

    private func calls(_ list: JSONReading) throws -> [FakeEngine.Call] {
        try list.list().map { call in
            let parts = try call.list(of: 2)
            let name = try parts[0].string()
            if name == "unload" { return .unload(try parts[1].string()) }
            return .run(name, try parts[1].integer(1...100))
        }
    }

    func testEventsTellWhatHappened() throws {
        let package = try Package(opening: fakePackage(self))
        let table = try package.table("lcm", steps: 4)
        var said: [String] = []
        _ = try Drawing(
            Request(prompt: "red"), engine: FakeEngine(package), package: package, table: table
        ) { event in
            switch event {
            case .loaded(let component, let seconds):
                XCTAssertGreaterThanOrEqual(seconds, 0)
                said.append("load \(component)")
            case .ran(let component, _): said.append(component)
            case .step(let step):
                XCTAssertEqual(step.timestep, table.rows[step.index].timestep)
                XCTAssertEqual(step.latents.count, 4 * 2 * 3)
                said.append("step \(step.index + 1)/\(step.total)")
            }
        }.draw()
        XCTAssertEqual(
            said,
            [
                "load text_encoder", "text_encoder", "load unet", "step 1/4", "step 2/4",
                "step 3/4",
                "step 4/4", "load vae_decoder", "vae_decoder",
            ])
    }

    func testThrowingFromAnEventCancels() throws {
        struct Cancelled: Error {}
        let package = try Package(opening: fakePackage(self))
        let engine = FakeEngine(package)
        var request = Request(prompt: "red")
        request.lowMemory = true
        let drawing = try Drawing(
            request, engine: engine, package: package, table: package.table("lcm", steps: 4)
        ) { event in
            if case .step(let step) = event, step.index == 1 { throw Cancelled() }
        }
        XCTAssertThrowsError(try drawing.draw()) { XCTAssert($0 is Cancelled) }
        XCTAssertEqual(engine.calls.filter { $0 == .run("unet", 2) }.count, 2)
        XCTAssert(engine.held.isEmpty)
    }

    func testRequestsThatCannotBeDrawn() throws {
        let package = try Package(opening: fakePackage(self))
        func refuse(_ message: String, _ change: (inout Request) throws -> Void) {
            assertRefused(message) {
                var request = Request(prompt: "red")
                try change(&request)
                _ = try Drawing(
                    request, engine: FakeEngine(package), package: package,
                    table: package.table("lcm", steps: 4)
                ).draw()
            }
        }
        refuse("24x16 pictures only") { $0.height = 32 }
        refuse("24x16 pictures only") { $0.width = .max }
        refuse("0 seeds") { $0.seeds = [] }
        refuse("65 seeds") { $0.seeds = Array(0..<65) }
        refuse("guidance") { $0.guidanceScale = .nan }
        refuse("8x8 pixels") {
            let pixels = [UInt8](repeating: 0, count: 192)
            $0.image = try Picture(height: 8, width: 8, pixels: pixels)
        }
        refuse("strength") {
            let pixels = [UInt8](repeating: 0, count: 16 * 24 * 3)
            $0.image = try Picture(height: 16, width: 24, pixels: pixels)
            $0.strength = 0
        }
        try assertSizes(package)
        assertRefused("no table") { _ = try package.table("lcm", steps: 5) }
    }

    /// Functions name the sizes that a package has; their width comes first.
    private func assertSizes(_ package: Package) throws {
        XCTAssertEqual(try package.sizes(), ["24x16"])
        let text = try Golden.read("package").member("manifests").member("any").string()
        let several = text.replacingOccurrences(
            of: "\"config\": {},\n   \"files\": [\n    \"unet.bin\"",
            with: #""config": {"functions": {"24x16": "a", "32x8": "b"}}, "files": ["unet.bin""#)
        let manifest = try Manifest(reading: JSONReading(JSON(parsing: Array(several.utf8))))
        let large = try Package(path: package.path, manifest: manifest)
        XCTAssertEqual(try large.sizes(), ["24x16", "32x8"])
        var request = Request(prompt: "")
        (request.height, request.width) = (8, 32)
        XCTAssertEqual(try request.size(for: large).width, 32)
        (request.height, request.width) = (32, 8)
        assertRefused("24x16 and 32x8 pictures only") { _ = try request.size(for: large) }
    }

    /// An engine's answer is believed only as far as its shape and its numbers go.
    func testAnswersThatAreNoneAreRefused() throws {
        let package = try Package(opening: fakePackage(self))
        func refuse(_ message: String, _ component: String, _ answer: Tensor) {
            assertRefused(message) {
                let engine = LyingEngine(package, component, answer)
                _ = try Drawing(
                    Request(prompt: "red"), engine: engine, package: package,
                    table: package.table("lcm", steps: 4)
                ).draw()
            }
        }
        func zeros(_ shape: [Int]) throws -> Tensor {
            try Tensor(shape: shape, [Float](repeating: 0, count: shape.reduce(1, *)))
        }
        refuse("did not give noise", "unet", try zeros([2, 4, 2, 4]))
        refuse("did not give noise", "unet", try zeros([1, 4, 2, 3]))
        refuse("did not give noise", "unet", try zeros([0]))
        refuse(
            "no numbers", "unet",
            try Tensor(shape: [2, 4, 2, 3], [Float](repeating: .nan, count: 48)))
        refuse("did not give embedding", "text_encoder", try zeros([2, 77]))
        refuse("did not give picture", "vae_decoder", try zeros([1, 3, 8, 24]))
    }
}

private final class LyingEngine: Engine {
    private let honest: FakeEngine
    private let component: String
    private let answer: Tensor

    init(_ package: Package, _ component: String, _ answer: Tensor) {
        (honest, self.component, self.answer) = (FakeEngine(package), component, answer)
    }

    var settings: EngineSettings { honest.settings }
    var compileSeconds: [String: Double] { [:] }
    func load(_ component: String) { honest.load(component) }
    func unload(_ component: String) { honest.unload(component) }

    func run(_ component: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        let answers = try honest.run(component, inputs)
        return component == self.component ? answers.mapValues { _ in answer } : answers
    }
}
