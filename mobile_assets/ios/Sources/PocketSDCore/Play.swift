/// The rows to play, and how their first latent is made.
public struct Schedule: Equatable, Sendable {
    public let rows: [SamplerTable.Row]
    public let signal: Double
    public let noise: Double

    /// x_0 from unit noise and, for img2img, the encoded picture.
    func begin(noise drawn: [Float], picture: [Float]?) -> [Float] {
        let noise = Float(noise), signal = Float(signal)
        guard let picture else { return drawn.map { noise * $0 } }
        return zip(picture, drawn).map { $0 * signal + $1 * noise }
    }
}

/// Calls `each(k, x_{k+1})` for every row and returns the last latent.
///
/// `evaluate(scaled latent, timestep)` is the UNet with guidance done; `noise(k)` is unit noise of
/// the latent's size, asked for only where a row uses it.
public func play(
    _ schedule: Schedule,
    from latent: [Float],
    evaluate: ([Float], Double) throws -> [Float],
    noise: (Int) throws -> [Float],
    each: (Int, [Float]) throws -> Void = { _, _ in }
) throws -> [Float] {
    var latents = [latent]  // newest first
    var outputs: [[Float]] = []
    for (k, row) in schedule.rows.enumerated() {
        let scale = Float(row.inputScale)
        let answer = try evaluate(latents[0].map { $0 * scale }, row.timestep)
        guard answer.count == latent.count else {
            throw PocketSDError("the model gave \(answer.count) values for \(latent.count)")
        }
        outputs.insert(answer, at: 0)
        var terms = Array(zip(row.latents, latents)) + Array(zip(row.outputs, outputs))
        if row.noise != 0 { terms.append((row.noise, try noise(k))) }
        latents.insert(weightedSum(terms), at: 0)
        latents = Array(latents.prefix(SamplerTable.history))
        outputs = Array(outputs.prefix(SamplerTable.history))
        try each(k, latents[0])
    }
    return latents[0]
}

/// Classifier-free guidance; scale 1 is the conditional output alone.
func guided(_ conditional: [Float], _ unconditional: [Float], scale: Float) -> [Float] {
    zip(conditional, unconditional).map { $1 + scale * ($0 - $1) }
}

/// In float32 and in the order of the terms, as all runtimes do it.
private func weightedSum(_ terms: [(weight: Double, values: [Float])]) -> [Float] {
    var sum = terms[0].values.map { Float(terms[0].weight) * $0 }
    for (weight, values) in terms.dropFirst() {
        let weight = Float(weight)
        for i in sum.indices { sum[i] += weight * values[i] }
    }
    return sum
}
