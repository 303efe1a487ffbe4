import PocketSDCore
import PocketSDCoreML
import SwiftUI

/// Draws with the package in the app's Documents folder and leaves the result beside it.
@main
struct PocketSDApp: App {
    var body: some Scene {
        WindowGroup { DrawingView() }
    }
}

struct DrawingView: View {
    @StateObject private var studio = Studio()
    @State private var prompt = "a red circle"
    @State private var units = ComputeUnits.cpuAndNeuralEngine

    var body: some View {
        Form {
            TextField("Prompt", text: $prompt)
            Picker("Compute units", selection: $units) {
                ForEach(ComputeUnits.allCases, id: \.self) { Text($0.rawValue) }
            }
            Button("Draw") { studio.draw(prompt, units) }.disabled(studio.isBusy)
            Text(studio.line).font(.footnote.monospacedDigit())
            if let picture = studio.picture {
                Image(uiImage: picture).resizable().scaledToFit()
            }
        }
    }
}

@MainActor
final class Studio: ObservableObject {
    @Published private(set) var line = "Copy a package into this app's folder in Files."
    @Published private(set) var picture: UIImage?
    @Published private(set) var isBusy = false

    func draw(_ prompt: String, _ units: ComputeUnits) {
        isBusy = true
        let show: @Sendable (String) -> Void = { text in Task { @MainActor in self.line = text } }
        Task {
            do {
                let png = try await Task.detached(priority: .userInitiated) {
                    try measure(prompt, units, show)
                }.value
                picture = UIImage(data: png)
            } catch {
                line = "\(error)"
            }
            isBusy = false
        }
    }
}

private func measure(
    _ prompt: String, _ units: ComputeUnits, _ show: @escaping @Sendable (String) -> Void
) throws -> Data {
    let documents = try FileManager.default.url(
        for: .documentDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
    let folders = try FileManager.default.contentsOfDirectory(
        at: documents, includingPropertiesForKeys: nil)
    guard
        let folder = folders.first(where: {
            FileManager.default.fileExists(atPath: $0.appendingPathComponent("manifest.json").path)
        })
    else { throw PocketSDError("there is no package in this app's folder") }

    show("Checking \(folder.lastPathComponent)")
    let package = try Package(opening: folder)
    let parts = package.manifest.defaultSampler.split(separator: "/")
    guard parts.count == 2, let steps = Int(parts[1]) else {
        throw PocketSDError("the package has no default sampler")
    }
    let request = Request(prompt: prompt)
    let (height, width) = try request.size(for: package)
    let engine = try CoreMLEngine(
        package: package, height: height, width: width, computeUnits: units)
    let benchmark = try Benchmark(
        request: request, sampler: String(parts[0]), steps: steps, warmups: 1, repeats: 1)
    let (record, drawn) = try benchmark.run(engine: engine, package: package, device: .current) {
        switch $1 {
        case .loaded(let component, let seconds): show("Loaded \(component) in \(seconds) s")
        case .ran(let component, let seconds): show("\(component): \(seconds) s")
        case .step(let step): show("Step \(step.index + 1) of \(step.total): \(step.seconds) s")
        }
    }
    try Data(record.text.utf8)
        .write(to: documents.appendingPathComponent("result.json"), options: .atomic)
    show("Done: result.json is beside the package")
    return drawn.pictures[0].png()
}
