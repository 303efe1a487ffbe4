@testable import PocketSDCore

/// tools/fake_engine.py once more: plain arithmetic in place of networks.
final class FakeEngine: Engine {
    enum Call: Equatable {
        case run(String, Int)
        case unload(String)
    }

    private(set) var calls: [Call] = []
    private(set) var held: Set<String> = []
    private let package: Package
    let settings = EngineSettings(engine: "fake", computeUnits: "cpuOnly")
    let compileSeconds = ["unet": 0.25]

    init(_ package: Package) {
        self.package = package
    }

    func load(_ component: String) { held.insert(component) }

    func run(_ component: String, _ inputs: [String: Tensor]) throws -> [String: Tensor] {
        guard held.contains(component) else { throw PocketSDError("\(component) was not loaded") }
        let described = try package.manifest.component(component)
        let batch = inputs[described.inputs[0].name]!.shape[0]
        calls.append(.run(component, batch))
        return [described.outputs[0].name: try answer(component, inputs)]
    }

    func unload(_ component: String) {
        held.remove(component)
        calls.append(.unload(component))
    }

    private func answer(_ component: String, _ inputs: [String: Tensor]) throws -> Tensor {
        switch component {
        case "text_encoder": return try embedding(inputs["tokens"]!)
        case "unet":
            return try noise(
                inputs["latent"]!, inputs["timestep"]!.floats(), inputs["embedding"]!)
        case "vae_encoder":
            let picture = inputs["picture"]!
            return try reshaped(picture, channels: 4, rows: 2, columns: 3) { value, b, c, y, x in
                value(b, c % 3, 8 * y, 8 * x) / 2
            }
        default:
            let latent = inputs["latent"]!
            return try reshaped(latent, channels: 3, rows: 16, columns: 24) { value, b, c, y, x in
                value(b, c, y / 8, x / 8) / 2 + Float((x + y) % 8) / 16
            }
        }
    }

    private func embedding(_ tokens: Tensor) throws -> Tensor {
        guard case .int32(let ids) = tokens.values else { throw PocketSDError("no tokens") }
        let length = tokens.shape[1]
        let values = ids.enumerated().flatMap { place, id in
            (1...2).map { Float((Int(id) * $0 + place % length) % 64) / 64 }
        }
        return try Tensor(shape: tokens.shape + [2], values)
    }

    private func noise(_ latent: Tensor, _ timesteps: [Float], _ embedding: Tensor) throws -> Tensor
    {
        let sums = try embedding.floats().chunked(embedding.shape[1] * embedding.shape[2])
        let biases = sums.map { $0.reduce(0, +) / 128 - 0.5 }
        let (rows, columns) = (latent.shape[2], latent.shape[3])
        return try reshaped(latent, channels: 4, rows: rows, columns: columns) {
            value, b, c, y, x in
            let z = value(b, c, y, x), w = value(b, (c + 3) % 4, y, x)
            return (0.25 * z - 0.125 * w + biases[b]) / (1 + abs(z)) + timesteps[b] / 2048
        }
    }

    /// [b, ...] of the input to [b, channels, rows, columns].
    private func reshaped(
        _ input: Tensor, channels: Int, rows: Int, columns: Int,
        _ value: ((Int, Int, Int, Int) -> Float, Int, Int, Int, Int) -> Float
    ) throws -> Tensor {
        let source = try input.floats(), shape = input.shape
        func at(_ b: Int, _ c: Int, _ y: Int, _ x: Int) -> Float {
            source[((b * shape[1] + c) * shape[2] + y) * shape[3] + x]
        }
        var values: [Float] = []
        for b in 0..<shape[0] {
            for c in 0..<channels {
                for y in 0..<rows {
                    for x in 0..<columns { values.append(value(at, b, c, y, x)) }
                }
            }
        }
        return try Tensor(shape: [shape[0], channels, rows, columns], values)
    }
}

extension Array {
    func chunked(_ size: Int) -> [[Element]] {
        stride(from: 0, to: count, by: size).map { Array(self[$0..<Swift.min($0 + size, count)]) }
    }
}
