/// One scheduler at one number of steps, as rows of coefficients; see `runtime_py/sampler.py`.
public struct SamplerTable: Equatable, Sendable {
    /// How many latents and outputs a row may look back on, its own included.
    public static let history = 4

    public let scheduler: String
    public let steps: Int
    public let prediction: String
    public let rows: [Row]
    public let initialNoise: Double  // x_0 = initialNoise * unit noise
    public let starts: [Start]  // starts[i] skips the first i of `steps` steps

    /// One evaluation of the UNet and the step that follows it.
    public struct Row: Equatable, Sendable {
        public let timestep: Double  // what the UNet is told
        public let inputScale: Double  // the UNet sees latent * inputScale
        public let latents: [Double]  // weights of x_k, x_{k-1}, ...
        public let outputs: [Double]  // weights of e_k, e_{k-1}, ...
        public let noise: Double  // weight of fresh noise; 0 draws none
        public let keep: [Double]  // signal, noise that put a known picture beside x_{k+1}
    }

    /// Where img2img may enter the table; `warmUp` replaces rows[row..<row + warmUp.count].
    public struct Start: Equatable, Sendable {
        public let row: Int
        public let signal: Double
        public let noise: Double
        public let warmUp: [Row]
    }

    /// Text to image.
    public func fromNoise() -> Schedule { Schedule(rows: rows, signal: 0, noise: initialNoise) }

    /// Image to image: plays the last `strength` of the steps, rounded down.
    public func fromStrength(_ strength: Double) throws -> Schedule {
        guard strength > 0, strength <= 1 else {
            throw PocketSDError("strength is \(strength), must be above 0 and at most 1")
        }
        let played = Int(Double(steps) * strength)
        guard played >= 1 else {
            throw PocketSDError("strength \(strength) leaves none of \(steps) steps to play")
        }
        let start = starts[steps - played]
        let rest = rows[(start.row + start.warmUp.count)...]
        return Schedule(rows: start.warmUp + rest, signal: start.signal, noise: start.noise)
    }
}

extension SamplerTable {
    public init(reading table: JSONReading) throws {
        scheduler = try table.member("scheduler").string()
        steps = try table.member("steps").integer(1...100_000)
        prediction = try table.member("prediction").string()
        initialNoise = try table.member("initial_noise").number()
        let (rowList, startList) = (try table.member("rows"), try table.member("starts"))
        rows = try rowList.list().enumerated().map { k, row in
            try Row(reading: row, depth: k + 1)
        }
        guard !rows.isEmpty else { throw rowList.wrong("is empty") }
        let count = rows.count
        starts = try startList.list(of: steps).map { try Start(reading: $0, rows: count) }
        for start in starts { try requireHistory(start) }
    }

    /// The table's own rows that follow a start must not reach before it either.
    private func requireHistory(_ start: Start) throws {
        let played = start.warmUp.count..<max(start.warmUp.count, SamplerTable.history)
        for k in played where start.row + k < rows.count {
            guard rows[start.row + k].depth <= k + 1 else {
                throw PocketSDError("row \(start.row + k) reaches before the start at \(start.row)")
            }
        }
    }
}

extension SamplerTable.Row {
    fileprivate var depth: Int { max(latents.count, outputs.count) }

    /// `depth`: how many latents there are by then.
    fileprivate init(reading row: JSONReading, depth available: Int) throws {
        let parts = try row.list(of: 6)
        timestep = try parts[0].number()
        inputScale = try parts[1].number()
        latents = try parts[2].numbers()
        outputs = try parts[3].numbers()
        noise = try parts[4].number()
        keep = try parts[5].list(of: 2).map { try $0.number() }
        guard depth > 0 else { throw row.wrong("is made of nothing") }
        guard depth <= min(available, SamplerTable.history) else {
            throw row.wrong("looks back \(depth) evaluations")
        }
    }
}

extension SamplerTable.Start {
    fileprivate init(reading start: JSONReading, rows: Int) throws {
        let parts = try start.list(of: 4)
        row = try parts[0].integer(0...rows - 1)
        signal = try parts[1].number()
        noise = try parts[2].number()
        warmUp = try parts[3].list().enumerated().map { k, row in
            try SamplerTable.Row(reading: row, depth: k + 1)
        }
        guard warmUp.count <= rows - row else { throw start.wrong("reaches past the last row") }
    }
}
