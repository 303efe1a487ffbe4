import Foundation
import XCTest

@testable import PocketSDCore
@testable import pocketsd_bench

/// The record of a measurement, and the command line that makes one.
final class BenchmarkTests: XCTestCase {
    private let device = Device(
        kind: .host, model: "test", system: "Linux", systemVersion: "1",
        thermalState: { "nominal" }, peakMemoryBytes: { 123 })

    private func measured(
        warmups: Int, repeats: Int, change: (inout Request) -> Void = { _ in }
    ) throws -> JSONReading {
        let package = try Package(opening: fakePackage(self, batch: "1"))
        var request = Request(prompt: "a red circle")
        change(&request)
        let benchmark = try Benchmark(
            request: request, sampler: "lcm", steps: 4, warmups: warmups, repeats: repeats)
        let engine = FakeEngine(package)
        let (record, drawn) = try benchmark.run(engine: engine, package: package, device: device)
        let pictures = engine.calls.filter { $0 == .run("vae_decoder", 1) }.count
        XCTAssertEqual(pictures, (warmups + repeats) * request.seeds.count)
        let json = JSONReading(try JSON(parsing: Array(record.text.utf8)))
        XCTAssertEqual(
            try json.member("picture_sha256").list()[0].string(), sha256(drawn.pictures[0].pixels))
        XCTAssertEqual(try json.member("package_sha256").string(), package.manifest.sha256)
        return json
    }

    func testTheFirstPictureIsApart() throws {
        let json = try measured(warmups: 2, repeats: 3)
        func count(_ name: String) throws -> Int { try json.member(name).numbers().count }
        XCTAssertEqual(try json.member("format").string(), "pocketsd-result")
        XCTAssertEqual(try count("first_step_seconds"), 4)
        XCTAssertEqual(try count("steady_step_seconds"), 12)
        XCTAssertEqual(try count("steady_picture_seconds"), 3)
        XCTAssertEqual(try count("steady_text_encoder_seconds"), 3)
        XCTAssertEqual(try count("steady_vae_encoder_seconds"), 0)
        XCTAssertEqual(try json.member("unet_compile_seconds").number(), 0.25)
        XCTAssertGreaterThanOrEqual(try json.member("unet_load_seconds").number(), 0)
        XCTAssertNil(try json.optional("vae_encoder_load_seconds"))
        XCTAssertNil(try json.optional("strength"))
        let whole = try json.member("first_picture_seconds").number()
        XCTAssertGreaterThanOrEqual(
            whole, try json.member("first_step_seconds").numbers().reduce(0, +))
    }

    func testWithoutWarmUpsTheFirstCountsToo() throws {
        let json = try measured(warmups: 0, repeats: 2) { $0.seeds = [1, .max] }
        XCTAssertEqual(try json.member("steady_step_seconds").numbers().count, 8)
        XCTAssertEqual(try json.member("seeds").list().map { try $0.word() }, [1, .max])
    }

    /// RESULT.md is compared with this file, left in POCKETSD_PICTURES if that is set.
    func testTheRecordIsFlat() throws {
        let json = try measured(warmups: 1, repeats: 1) { $0.lowMemory = true }
        for (name, value) in try json.entries() {
            switch value.value {
            case .object: XCTFail("\(name) is an object")
            case .array(let values):
                for value in values {
                    if case .array = value { XCTFail("\(name) nests") }
                    if case .object = value { XCTFail("\(name) nests") }
                }
            default: break
            }
        }
        if let folder = ProcessInfo.processInfo.environment["POCKETSD_PICTURES"] {
            try Data(json.value.indented.utf8)
                .write(to: URL(fileURLWithPath: folder).appendingPathComponent("result.json"))
        }
    }

    func testCountsThatCannotBe() {
        for (warmups, repeats) in [(-1, 1), (0, 0), (0, -5), (.max, 1), (1, .max)] {
            assertRefused("warm-ups") {
                _ = try Benchmark(
                    request: Request(prompt: ""), sampler: "lcm", steps: 4, warmups: warmups,
                    repeats: repeats)
            }
        }
    }

    func testTheCommandLine() throws {
        XCTAssertEqual(try Command([]), .help)
        XCTAssertEqual(try Command(["x", "--help"]), .help)
        let place = URL(fileURLWithPath: "sd.coreml")
        XCTAssertEqual(
            try Command(["check", "sd.coreml", "--prompt", "a cat"]),
            .check(package: place, prompt: "a cat"))
        var options = Options()
        options.prompt = "--steps"
        options.steps = 8
        options.seeds = [.max, 0]
        options.guidance = 1
        options.computeUnits = .cpuAndGPU
        options.lowMemory = true
        options.out = URL(fileURLWithPath: "r.json")
        XCTAssertEqual(
            try Command([
                "--prompt", "--steps", "sd.coreml", "--steps", "8", "--seed",
                "18446744073709551615",
                "--seed", "0", "--guidance", "1", "--compute-units", "cpuAndGPU", "--low-memory",
                "--out", "r.json",
            ]),
            .measure(package: place, options))
        XCTAssertEqual(options.request.seeds, [.max, 0])
        XCTAssertEqual(Options().request.seeds, [0])

        func refuse(_ message: String, _ arguments: String...) {
            assertRefused(message) { _ = try Command(arguments) }
        }
        refuse("no option --step", "p", "--step", "3")
        refuse("no option --steps", "check", "p", "--steps", "3")
        refuse("--steps needs a value", "p", "--steps")
        refuse("--steps 3.5 is not a number", "p", "--steps", "3.5")
        refuse("--seed -1 is not a number", "p", "--seed", "-1")
        refuse("no compute units 'gpu'", "p", "--compute-units", "gpu")
        refuse("2 given", "p", "q")
        refuse("0 given", "check")
    }

    func testCheckTellsWhatAPackageIs() throws {
        let folder = try fakePackage(self)
        let lines = try check(folder, prompt: String(repeating: "red ", count: 76))
        XCTAssert(lines.contains { $0.hasPrefix("tokens: ") })
        XCTAssertEqual(lines.last, "does not fit: red")
        XCTAssert(lines.contains("samplers: dpm++-2m/4, euler-ancestral/4, lcm/4"))
        let manifest = try Package(opening: folder).manifest
        var options = Options()
        XCTAssertEqual(try options.table(of: manifest).sampler, "dpm++-2m")
        options.sampler = "lcm"
        XCTAssertEqual(try options.table(of: manifest).steps, 4)
        #if !canImport(CoreML)
        assertRefused("no Core ML") { try pocketsd_bench.measure(folder, options) }
        #endif
    }
}
