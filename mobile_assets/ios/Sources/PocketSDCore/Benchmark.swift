import Foundation

/// Pictures drawn with a stopwatch: the first apart from the rest, as it pays for what is prepared
/// once, then warm-ups that are not counted, then the repeats.
public struct Benchmark {
    public let request: Request
    public let sampler: String
    public let steps: Int
    public let warmups: Int  // pictures before the repeats; the first one is among them
    public let repeats: Int

    public init(request: Request, sampler: String, steps: Int, warmups: Int, repeats: Int) throws {
        guard (0...1000).contains(warmups), (1...1000).contains(repeats) else {
            throw PocketSDError(
                "\(warmups) warm-ups and \(repeats) repeats are not 0 and 1 to 1000")
        }
        (self.request, self.sampler, self.steps) = (request, sampler, steps)
        (self.warmups, self.repeats) = (warmups, repeats)
    }

    public func run(
        engine: Engine, package: Package, device: Device,
        each: @escaping (_ picture: Int, Event) throws -> Void = { _, _ in }
    ) throws -> (ResultRecord, Drawn) {
        let table = try package.table(sampler, steps: steps)
        let thermalBefore = device.thermalState()
        var timings: [Timings] = []
        var last: Drawn?
        for picture in 0..<warmups + repeats {
            let timing = Timings()
            let drawing = try Drawing(request, engine: engine, package: package, table: table) {
                timing.note($0)
                try each(picture, $0)
            }
            let started = Stopwatch()
            last = try drawing.draw()
            timing.total = started.seconds
            timings.append(timing)
        }
        guard let last else { throw PocketSDError("no picture was drawn") }
        let (height, width) = try request.size(for: package)
        let record = ResultRecord(
            benchmark: self, package: package, device: device, height: height, width: width,
            first: timings[0], steady: Array(timings.dropFirst(warmups)), drawn: last,
            compileSeconds: engine.compileSeconds, settings: engine.settings,
            thermalBefore: thermalBefore)
        return (record, last)
    }
}

/// What one picture took.
final class Timings {
    var load: [String: Double] = [:]
    var run: [String: Double] = [:]
    var steps: [Double] = []
    var total = 0.0

    func note(_ event: Event) {
        switch event {
        case .loaded(let component, let seconds): load[component] = seconds
        case .ran(let component, let seconds): run[component] = seconds
        case .step(let step): steps.append(step.seconds)
        }
    }
}

/// What the pictures were drawn on.
public struct Device: Sendable {
    public enum Kind: String, Sendable {
        case phone, tablet, simulator, desktop, browser, host
    }

    public let kind: Kind
    public let model: String
    public let system: String
    public let systemVersion: String
    public let cores: Int
    public let memoryBytes: UInt64
    public let thermalState: @Sendable () -> String
    public let peakMemoryBytes: @Sendable () -> UInt64?

    public init(
        kind: Kind, model: String, system: String, systemVersion: String,
        thermalState: @escaping @Sendable () -> String,
        peakMemoryBytes: @escaping @Sendable () -> UInt64?
    ) {
        (self.kind, self.model, self.system, self.systemVersion) = (
            kind, model, system, systemVersion
        )
        cores = ProcessInfo.processInfo.processorCount
        memoryBytes = ProcessInfo.processInfo.physicalMemory
        (self.thermalState, self.peakMemoryBytes) = (thermalState, peakMemoryBytes)
    }
}
