import Foundation

/// What was measured, as flat JSON; RESULT.md describes every member.
public struct ResultRecord {
    public static let format = "pocketsd-result"
    public static let version = 1

    public let json: JSON

    init(
        benchmark: Benchmark, package: Package, device: Device, height: Int, width: Int,
        first: Timings, steady: [Timings], drawn: Drawn, compileSeconds: [String: Double],
        settings: EngineSettings, thermalBefore: String
    ) {
        let (request, manifest) = (benchmark.request, package.manifest)
        var members: [JSON.Member] = []
        func add(_ name: String, _ value: JSON) { members.append(JSON.Member(name, value)) }

        add("format", .string(ResultRecord.format))
        add("version", .integer(ResultRecord.version))
        add("created", .string(ISO8601DateFormatter().string(from: Date())))
        add("created_by", .string("pocketsd-swift \(pocketSDVersion)"))

        add("device_kind", .string(device.kind.rawValue))
        add("device_model", .string(device.model))
        add("device_cores", .integer(device.cores))
        add("device_memory_bytes", .integer(device.memoryBytes))
        add("os", .string(device.system))
        add("os_version", .string(device.systemVersion))

        add("engine", .string(settings.engine))
        add("compute_units", .string(settings.computeUnits))
        add("package_model", .string(manifest.model))
        add("package_target", .string(manifest.target))
        add("package_precision", .string(manifest.precision))
        add("package_sha256", .string(manifest.sha256))
        add("package_bytes", .integer(package.bytes))

        add("prompt", .string(request.prompt))
        add("negative_prompt", .string(request.negativePrompt))
        add("seeds", .array(request.seeds.map { .string("\($0)") }))
        add("sampler", .string(benchmark.sampler))
        add("steps", .integer(benchmark.steps))
        add("guidance_scale", .double(request.guidanceScale))
        add("strength", request.image == nil ? .null : .double(request.strength))
        add("height", .integer(height))
        add("width", .integer(width))
        add("low_memory", .bool(request.lowMemory))
        add("warmups", .integer(benchmark.warmups))
        add("repeats", .integer(benchmark.repeats))

        for component in ResultRecord.components {
            add("\(component)_compile_seconds", compileSeconds[component].map(JSON.double) ?? .null)
            add("\(component)_load_seconds", first.load[component].map(JSON.double) ?? .null)
        }
        for component in ResultRecord.components where component != "unet" {
            add("first_\(component)_seconds", first.run[component].map(JSON.double) ?? .null)
        }
        add("first_step_seconds", .array(first.steps.map(JSON.double)))
        add("first_picture_seconds", .double(first.total))
        for component in ResultRecord.components where component != "unet" {
            let seconds = steady.compactMap { $0.run[component] }
            add("steady_\(component)_seconds", .array(seconds.map(JSON.double)))
        }
        add("steady_step_seconds", .array(steady.flatMap(\.steps).map(JSON.double)))
        add("steady_picture_seconds", .array(steady.map { .double($0.total) }))

        add("peak_memory_bytes", device.peakMemoryBytes().map(JSON.integer) ?? .null)
        add("thermal_before", .string(thermalBefore))
        add("thermal_after", .string(device.thermalState()))
        add("picture_sha256", .array(drawn.pictures.map { .string(sha256($0.pixels)) }))
        add("prompt_cut", .string(drawn.cut))
        json = .object(members)
    }

    private static let components = ["text_encoder", "vae_encoder", "unet", "vae_decoder"]

    public var text: String { json.indented }
}

/// What an engine says of itself.
public struct EngineSettings: Equatable, Sendable {
    public let engine: String  // "coreml"
    public let computeUnits: String  // what was asked for, not what the system then used

    public init(engine: String, computeUnits: String) {
        self.engine = engine
        self.computeUnits = computeUnits
    }
}
