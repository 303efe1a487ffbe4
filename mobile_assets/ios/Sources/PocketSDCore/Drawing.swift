/// The loop of `runtime_py/pipeline.py`: a prompt in, events on the way, pictures at the end.
///
/// It knows engines and packages only by their named inputs. To cancel, throw from `each`.
public struct Drawing {
    /// The noise of a stream for all seeds; replaces the seeded noise for comparisons with others.
    public typealias NoiseSource = (UInt64) -> [Float]

    let engine: Engine
    let package: Package
    let table: SamplerTable
    let request: Request
    let each: (Event) throws -> Void

    private let height: Int
    private let width: Int
    private let latentShape: [Int]  // [seeds, channels, h, w]

    public init(
        _ request: Request, engine: Engine, package: Package, table: SamplerTable,
        each: @escaping (Event) throws -> Void = { _ in }
    ) throws {
        (height, width) = try request.size(for: package)
        let picture = package.manifest.picture
        latentShape = [
            request.seeds.count, picture.latentChannels, height / picture.shrink,
            width / picture.shrink,
        ]
        (self.engine, self.package, self.table) = (engine, package, table)
        (self.request, self.each) = (request, each)
    }

    public func draw(noise: NoiseSource? = nil) throws -> Drawn {
        let noise = noise ?? seededNoise
        let schedule =
            try request.image == nil
            ? table.fromNoise() : table.fromStrength(request.strength)
        let (embedding, cut) = try embed()
        let known = try request.image.map(encode)
        let latents = try denoise(
            schedule, from: schedule.begin(noise: noise(Noise.initial), picture: known), embedding,
            noise)
        return Drawn(pictures: try decode(latents), latents: latents, cut: cut)
    }

    /// [prompts, length, width]
    private func embed() throws -> (Tensor, cut: String) {
        let tokenizer = try package.tokenizer()
        let tokens = request.prompts.map { tokenizer($0) }
        let shape = [tokens.count, package.manifest.tokenizer.length]
        let ids = try Tensor(shape: shape, .int32(tokens.flatMap(\.ids)))
        return (try stage("text_encoder", ["tokens": ids]), tokens[tokens.count - 1].cut)
    }

    /// The image's latent, once for every seed.
    private func encode(_ image: Picture) throws -> [Float] {
        let picture = try Tensor(shape: [1, 3, height, width], image.forNetwork())
        let latent = try stage("vae_encoder", ["picture": picture])
        try require(latent, of: "vae_encoder", shape: [1] + latentShape.dropFirst())
        return try latent.rows([Int](repeating: 0, count: request.seeds.count)).floats()
    }

    private func denoise(
        _ schedule: Schedule, from latents: [Float], _ embedding: Tensor, _ noise: NoiseSource
    ) throws -> [Float] {
        try load("unet")
        defer { if request.lowMemory { engine.unload("unet") } }
        var started = Stopwatch()
        return try play(
            schedule, from: latents,
            evaluate: { try evaluate($0, $1, embedding) },
            noise: { noise(Noise.stream(ofRow: $0)) },
            each: { index, latents in
                guard latents.allSatisfy(\.isFinite) else { throw notNumbers("unet") }
                let row = schedule.rows[index]
                try each(
                    .step(
                        Step(
                            index: index, total: schedule.rows.count, timestep: row.timestep,
                            latents: latents, seconds: started.seconds)))
                started = Stopwatch()
            })
    }

    /// The UNet's answer for all seeds, guidance done.
    private func evaluate(
        _ latents: [Float], _ timestep: Double, _ embedding: Tensor
    ) throws -> [Float] {
        let (seeds, prompts) = (request.seeds.count, request.prompts.count)
        let rows = seeds * prompts
        let shape = [rows] + latentShape.dropFirst()
        let copies = [Float]((0..<prompts).map { _ in latents }.joined())
        let answer = try run(
            "unet",
            [
                "latent": Tensor(shape: shape, copies),
                "timestep": Tensor(shape: [rows], [Float](repeating: Float(timestep), count: rows)),
                "embedding": embedding.rows((0..<rows).map { $0 / seeds }),
            ])
        try require(answer, of: "unet", shape: shape)
        let values = try answer.floats()
        if prompts == 1 { return values }
        let unconditional = Array(values.prefix(latents.count))
        let conditional = Array(values.suffix(latents.count))
        return guided(conditional, unconditional, scale: Float(request.guidanceScale))
    }

    private func decode(_ latents: [Float]) throws -> [Picture] {
        let decoded = try stage("vae_decoder", ["latent": Tensor(shape: latentShape, latents)])
        try require(decoded, of: "vae_decoder", shape: [request.seeds.count, 3, height, width])
        let values = try decoded.floats(), size = 3 * height * width
        return try request.seeds.indices.map { index in
            let picture = values[index * size..<(index + 1) * size]
            return try Picture(height: height, width: width, fromNetwork: picture)
        }
    }
}

extension Drawing {
    /// A component other than the denoiser: loaded, run once, freed if memory is short.
    private func stage(_ component: String, _ inputs: [String: Tensor]) throws -> Tensor {
        try load(component)
        let started = Stopwatch()
        let answer = try run(component, inputs)
        if request.lowMemory { engine.unload(component) }
        try each(.ran(component: component, seconds: started.seconds))
        return answer
    }

    private func load(_ component: String) throws {
        let started = Stopwatch()
        try engine.load(component)
        try each(.loaded(component: component, seconds: started.seconds))
    }

    /// Runs a component that has one output, in slices of the batch that it was built for; a last
    /// slice that is not full repeats its end.
    private func run(_ name: String, _ inputs: [String: Tensor]) throws -> Tensor {
        let component = try package.manifest.component(name)
        let rows = inputs.values.first?.shape.first ?? 0
        let size = component.batch ?? rows
        guard (1...256).contains(size) else {
            throw PocketSDError("\(name) takes a batch of \(size)")
        }
        var values: [Float] = []
        var shape: [Int] = []
        for begin in stride(from: 0, to: rows, by: size) {
            let indices = (begin..<begin + size).map { min($0, rows - 1) }
            let slice = size == rows ? inputs : try inputs.mapValues { try $0.rows(indices) }
            try component.check(slice)
            let output = component.outputs[0]
            guard let answer = try engine.run(name, slice)[output.name], answer.shape.first == size,
                output.fits(answer)
            else { throw PocketSDError("\(name) did not give \(output)") }
            let kept = try answer.rows(Array(0..<min(size, rows - begin)))
            values += try kept.floats()
            shape = [rows] + answer.shape.dropFirst()
        }
        guard values.allSatisfy(\.isFinite) else { throw notNumbers(name) }
        return try Tensor(shape: shape, values)
    }

    private func require(_ tensor: Tensor, of component: String, shape: [Int]) throws {
        guard tensor.shape == shape else {
            throw PocketSDError("\(component) gave \(tensor.shape), \(shape) is needed")
        }
    }

    private func notNumbers(_ component: String) -> PocketSDError {
        PocketSDError(
            "\(component) gave values that are no numbers (NaN or infinite)",
            mend: "other compute units, or a package in fp32")
    }

    private func seededNoise(_ stream: UInt64) -> [Float] {
        let count = latentShape.dropFirst().reduce(1, *)
        return request.seeds.flatMap { Noise.gaussian(seed: $0, stream: stream, count: count) }
    }
}

/// Seconds since it was made.
struct Stopwatch {
    private let start = ContinuousClock.now

    var seconds: Double {
        let passed = ContinuousClock.now - start
        return Double(passed.components.seconds) + Double(passed.components.attoseconds) * 1e-18
    }
}
