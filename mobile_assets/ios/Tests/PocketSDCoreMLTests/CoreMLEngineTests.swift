import CoreML
import Foundation
import XCTest

@testable import PocketSDCore
@testable import PocketSDCoreML

/// The engine on the stand-in for Core ML.
final class CoreMLEngineTests: XCTestCase {
    private var folder = URL(fileURLWithPath: "/")

    override func setUpWithError() throws {
        folder = FileManager.default.temporaryDirectory
            .appendingPathComponent("pocketsd-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        (MLModel.compiled, MLModel.opened) = ([], [])
    }

    override func tearDownWithError() throws {
        try FileManager.default.removeItem(at: folder)
    }

    private func write(_ name: String, _ model: String) throws {
        let place = folder.appendingPathComponent(name)
        try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
        try Data(model.utf8).write(to: place.appendingPathComponent("model.json"))
    }

    /// A UNet of two files: h = 2 (latent + timestep) in fp16, noise = 0.5 (embedding + h).
    private func package(config: String = "", target: String = "coreml") throws -> Package {
        try write(
            "unet-0.mlpackage",
            """
            {"inputs":{"latent":"float32","timestep":"float16"},"outputs":{"h":"float16"},
             "factor":{"":2,"wide":4}}
            """
        )
        try write(
            "unet-1.mlpackage",
            """
            {"inputs":{"h":"float16","embedding":"float32"},"outputs":{"noise":"float16"},
             "factor":{"":0.5,"wide":0.5}}
            """
        )
        try write(
            "text.mlpackage",
            #"{"inputs":{"tokens":"int32"},"outputs":{"embedding":"float32"},"factor":{"":1}}"#)
        let spec = { (name: String, shape: String, type: String) in
            #"{"name":"\#(name)","shape":\#(shape),"dtype":"\#(type)","layout":""}"#
        }
        let latent = "[1,2,3,5]"
        let text = """
            {"components":[
             {"name":"unet","files":["unet-0.mlpackage/model.json","unet-1.mlpackage/model.json"],
              "inputs":[\(spec("latent", latent, "float32")),\(spec("timestep", "[1]", "float32")),
              \(spec("embedding", latent, "float32"))],
              "outputs":[\(spec("noise", latent, "float32"))],
              "config":{\(config)"chain":[
               {"file":"unet-0.mlpackage","inputs":["latent","timestep"],"outputs":["h"]},
               {"file":"unet-1.mlpackage","inputs":["h","embedding"],"outputs":["noise"]}]}},
             {"name":"text_encoder","files":["text.mlpackage/model.json"],
              "inputs":[\(spec("tokens", "[1,3]", "int32"))],
              "outputs":[\(spec("embedding", "[1,3]", "float32"))],
              "config":{"chain":[
               {"file":"text.mlpackage","inputs":["tokens"],"outputs":["embedding"]}]}}],
             "model":"m","target":"\(target)","precision":"fp16","default_sampler":"lcm/4",
             "samplers":{},
             "picture":{"height":8,"width":8,"shrink":8,"unit":8,"latent_channels":4,"preview":[]},
             "tokenizer":{"vocab":"v","merges":"v","length":77},
             "files":{"v":{"sha256":"","bytes":0},"unet-0.mlpackage/model.json":\(entry("unet-0")),
              "unet-1.mlpackage/model.json":\(entry("unet-1")),
              "text.mlpackage/model.json":\(entry("text"))},
             "sha256":"0123456789abcdef0123456789abcdef0123"}
            """
        try Data().write(to: folder.appendingPathComponent("v"))
        let manifest = try Manifest(reading: JSONReading(JSON(parsing: Array(text.utf8))))
        return try Package(path: folder, manifest: manifest)
    }

    private func entry(_ name: String) -> String {
        let file = folder.appendingPathComponent("\(name).mlpackage/model.json")
        return #"{"sha256":"","bytes":\#(regularFileSize(file) ?? 0)}"#
    }

    private func engine(
        _ package: Package, units: ComputeUnits = .all, height: Int = 8
    ) throws -> CoreMLEngine {
        let models = try CompiledModels(
            package: package, within: folder.appendingPathComponent("caches"))
        return try CoreMLEngine(
            package: package, height: height, width: 8, computeUnits: units, models: models)
    }

    private let latent = (0..<30).map { Float($0) - 7 }

    private func inputs() throws -> [String: Tensor] {
        let embedding = try Tensor(shape: [1, 2, 3, 5], latent.map { $0 * 10 })
        return [
            "latent": try Tensor(shape: [1, 2, 3, 5], latent),
            "timestep": try Tensor(shape: [1], [3]), "embedding": embedding,
        ]
    }

    func testTensorsPassThroughAChain() throws {
        let engine = try engine(package(), units: .cpuAndNeuralEngine)
        let answer = try engine.run("unet", inputs())
        XCTAssertEqual(Array(answer.keys), ["noise"])
        XCTAssertEqual(answer["noise"]?.shape, [1, 2, 3, 5])
        // Small whole numbers are exact in fp16.
        XCTAssertEqual(try answer["noise"]?.floats(), latent.map { 0.5 * ($0 * 10 + 2 * ($0 + 3)) })
        XCTAssertEqual(
            MLModel.opened.map(\.computeUnits), [.cpuAndNeuralEngine, .cpuAndNeuralEngine])
        XCTAssertEqual(
            engine.settings, EngineSettings(engine: "coreml", computeUnits: "cpuAndNeuralEngine"))
    }

    func testWholeNumbersGoInAsSuch() throws {
        let tokens = try Tensor(shape: [1, 3], .int32([5, 0, 49407]))
        let answer = try engine(package()).run("text_encoder", ["tokens": tokens])
        XCTAssertEqual(try answer["embedding"]?.floats(), [5, 0, 49407])
    }

    func testModelsAreCompiledOnceAndLoadedOnce() throws {
        let package = try package()
        let first = try engine(package)
        try first.load("unet")
        try first.load("unet")
        XCTAssertEqual(MLModel.compiled, ["unet-0.mlpackage", "unet-1.mlpackage"])
        XCTAssertEqual(MLModel.opened.count, 2)
        XCTAssertNotNil(first.compileSeconds["unet"])
        first.unload("unet")
        _ = try first.run("unet", inputs())
        XCTAssertEqual(MLModel.opened.count, 4)

        let second = try engine(package)
        try second.load("unet")
        XCTAssertEqual(MLModel.compiled.count, 2)
        XCTAssertNil(second.compileSeconds["unet"])

        try CompiledModels(package: package, within: folder.appendingPathComponent("caches"))
            .remove()
        try engine(package).load("unet")
        XCTAssertEqual(MLModel.compiled.count, 4)
    }

    func testAFunctionIsChosenBySize() throws {
        let package = try package(config: #""functions":{"8x16":"wide"},"#)
        let answer = try engine(package, height: 16).run("unet", inputs())
        XCTAssertEqual(try answer["noise"]?.floats(), latent.map { 0.5 * ($0 * 10 + 4 * ($0 + 3)) })
        XCTAssertEqual(MLModel.opened.map(\.functionName), ["wide", "wide"])
        XCTAssertThrowsError(try engine(package, height: 24).load("unet")) {
            XCTAssertEqual("\($0)", "unet has no function for 8x24 (it has 8x16)")
        }
    }

    func testWhatGoesWrongIsOneLine() throws {
        func refuse(_ message: String, _ body: () throws -> Void) {
            XCTAssertThrowsError(try body()) { error in
                XCTAssert(error is PocketSDError && "\(error)".contains(message), "\(error)")
            }
        }
        refuse("a package for webgpu") { _ = try engine(self.package(target: "webgpu")) }
        let package = try package()
        refuse("unet takes") { _ = try engine(package).run("unet", [:]) }
        refuse("has no vae_decoder") { try engine(package).load("vae_decoder") }
        try write("unet-1.mlpackage", "damaged")
        refuse("Core ML cannot load it") { try engine(package).load("unet") }
        try FileManager.default.removeItem(at: folder.appendingPathComponent("unet-0.mlpackage"))
        try FileManager.default.removeItem(at: folder.appendingPathComponent("caches"))
        refuse("Core ML cannot compile it") { try engine(package).load("unet") }
    }

    func testModelsThatAreNotAsDescribed() throws {
        func refuse(_ message: String, _ model: String) throws {
            let package = try package()
            try? FileManager.default.removeItem(at: folder.appendingPathComponent("caches"))
            try write("unet-0.mlpackage", model)
            XCTAssertThrowsError(try engine(package).run("unet", inputs())) { error in
                XCTAssert(error is PocketSDError && "\(error)".contains(message), "\(error)")
            }
        }
        let outputs = #""outputs":{"h":"float16"},"factor":{"":2}}"#
        try refuse("has no input timestep", #"{"inputs":{"latent":"float32"},"# + outputs)
        try refuse(
            "is not known here", #"{"inputs":{"latent":"int8","timestep":"float32"},"# + outputs)
        try refuse(
            "int32 is needed", #"{"inputs":{"latent":"int32","timestep":"float32"},"# + outputs)
        try refuse(
            "fails",
            #"{"inputs":{"latent":"float32","timestep":"float32","more":"float32"},"# + outputs)
        try refuse(
            "gives no h",
            #"{"inputs":{"latent":"float32","timestep":"float32"},"outputs":{},"factor":{"":2}}"#)
    }
}
