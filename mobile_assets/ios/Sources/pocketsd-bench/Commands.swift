import Foundation
import PocketSDCore

#if canImport(CoreML)
import PocketSDCoreML
#endif

/// Reads all of a package and says what it is, in lines.
func check(_ path: URL, prompt: String?) throws -> [String] {
    let package = try Package(opening: path)
    let (manifest, picture) = (package.manifest, package.manifest.picture)
    let sizes = try package.sizes().joined(separator: ", ")
    for name in manifest.samplers.keys.sorted() {
        let parts = name.split(separator: "/")
        guard parts.count == 2, let steps = Int(parts[1]) else {
            throw PocketSDError("'\(name)' names no sampler and its steps", at: path)
        }
        _ = try package.table(String(parts[0]), steps: steps)
    }
    let tokenizer = try package.tokenizer()
    var lines = [
        "\(manifest.model): \(manifest.target), \(manifest.precision), "
            + (sizes.isEmpty ? "any size, usually \(picture.width)x\(picture.height)" : sizes),
        "components: \(manifest.components.map(\.name).joined(separator: ", "))",
        "samplers: \(manifest.samplers.keys.sorted().joined(separator: ", "))",
        "\(manifest.files.count) files of \(package.bytes) bytes, all as listed",
        "sha256 \(manifest.sha256)",
    ]
    if let prompt {
        let tokens = tokenizer(prompt)
        lines.append("tokens: \(tokens.ids.map(String.init).joined(separator: " "))")
        if !tokens.cut.isEmpty { lines.append("does not fit: \(tokens.cut)") }
    }
    return lines
}

#if canImport(CoreML)
func measure(_ path: URL, _ options: Options) throws {
    let package = try Package(opening: path)
    let (sampler, steps) = try options.table(of: package.manifest)
    let request = options.request
    let (height, width) = try request.size(for: package)
    let engine = try CoreMLEngine(
        package: package, height: height, width: width, computeUnits: options.computeUnits)
    let benchmark = try Benchmark(
        request: request, sampler: sampler, steps: steps, warmups: options.warmups,
        repeats: options.repeats)
    let (record, drawn) = try benchmark.run(engine: engine, package: package, device: .current) {
        say(line(picture: $0, of: options.warmups + options.repeats, $1))
    }
    if let place = options.picture { try write(drawn.pictures[0].png(), to: place) }
    if let place = options.out {
        try write(Data(record.text.utf8), to: place)
    } else {
        print(record.text, terminator: "")
    }
}

private func line(picture: Int, of total: Int, _ event: Event) -> String {
    func rounded(_ seconds: Double) -> String { String(format: "%.3f s", seconds) }
    let happened: String
    switch event {
    case .loaded(let component, let seconds):
        happened = "loaded \(component), \(rounded(seconds))"
    case .ran(let component, let seconds): happened = "\(component), \(rounded(seconds))"
    case .step(let step):
        happened = "step \(step.index + 1)/\(step.total), \(rounded(step.seconds))"
    }
    return "picture \(picture + 1)/\(total): \(happened)"
}

private func write(_ data: Data, to place: URL) throws {
    do {
        try data.write(to: place, options: .atomic)
    } catch {
        throw PocketSDError("cannot be written, \(error.localizedDescription)", at: place)
    }
}
#else
func measure(_ path: URL, _ options: Options) throws {
    throw PocketSDError(
        "this system has no Core ML to run a package with",
        mend: "`pocketsd-bench check PACKAGE` works anywhere")
}
#endif

/// Progress and errors; standard output is for results.
func say(_ text: String) {
    FileHandle.standardError.write(Data((text + "\n").utf8))
}
