import Foundation
import PocketSDCore

/// What the command line asks for.
enum Command: Equatable {
    case help
    case check(package: URL, prompt: String?)
    case measure(package: URL, Options)

    static let usage = """
        usage: pocketsd-bench PACKAGE [options]        draw pictures with Core ML and time them
               pocketsd-bench check PACKAGE [--prompt TEXT]   is the package whole? runs anywhere

          --prompt TEXT             what to draw                             [a red circle]
          --negative-prompt TEXT    what to avoid                            []
          --steps N                 of a table that the package has          [its default]
          --sampler NAME            likewise                                 [its default]
          --seed N                  repeatable                               [0]
          --guidance NUMBER         classifier-free guidance                 [7.5]
          --height N, --width N     where the package has several sizes      [its own]
          --compute-units WHICH     all, cpuAndNeuralEngine, cpuAndGPU, cpuOnly   [all]
          --low-memory              hold one component at a time
          --repeats N, --warmups N  pictures to measure, and to draw before  [3, 1]
          --out FILE.json           where the result goes                    [standard output]
          --picture FILE.png        the last picture
        """

    init(_ arguments: [String]) throws {
        if arguments.isEmpty || arguments.contains("--help") || arguments.contains("-h") {
            self = .help
            return
        }
        let isCheck = arguments[0] == "check"
        var places: [String] = []
        var options = Options()
        var prompt: String?
        var rest = arguments.dropFirst(isCheck ? 1 : 0)
        while let word = rest.popFirst() {
            guard word.hasPrefix("--") else {
                places.append(word)
                continue
            }
            if word == "--low-memory", !isCheck {
                options.lowMemory = true
                continue
            }
            guard word == "--prompt" || !isCheck && Options.names.contains(word) else {
                throw PocketSDError("no option \(word)", mend: "--help lists them")
            }
            guard let value = rest.popFirst() else { throw PocketSDError("\(word) needs a value") }
            if word == "--prompt" { prompt = value }
            try options.set(word, value)
        }
        guard places.count == 1 else {
            throw PocketSDError("one package is needed, \(places.count) given", mend: "--help")
        }
        let package = URL(fileURLWithPath: places[0])
        self =
            isCheck ? .check(package: package, prompt: prompt) : .measure(package: package, options)
    }
}

struct Options: Equatable {
    var prompt = "a red circle"
    var negativePrompt = ""
    var steps: Int?
    var sampler: String?
    var seeds: [UInt64] = []
    var guidance = 7.5
    var height: Int?
    var width: Int?
    var computeUnits = ComputeUnits.all
    var lowMemory = false
    var repeats = 3
    var warmups = 1
    var out: URL?
    var picture: URL?

    static let names: Set = [
        "--prompt", "--negative-prompt", "--steps", "--sampler", "--seed", "--guidance", "--height",
        "--width", "--compute-units", "--repeats", "--warmups", "--out", "--picture",
    ]

    mutating func set(_ name: String, _ value: String) throws {
        switch name {
        case "--prompt": prompt = value
        case "--negative-prompt": negativePrompt = value
        case "--steps": steps = try number(name, value)
        case "--sampler": sampler = value
        case "--seed": seeds.append(try number(name, value))
        case "--guidance": guidance = try number(name, value)
        case "--height": height = try number(name, value)
        case "--width": width = try number(name, value)
        case "--compute-units":
            guard let units = ComputeUnits(rawValue: value) else {
                let have = ComputeUnits.allCases.map(\.rawValue).joined(separator: ", ")
                throw PocketSDError("no compute units '\(value)' (there are \(have))")
            }
            computeUnits = units
        case "--repeats": repeats = try number(name, value)
        case "--warmups": warmups = try number(name, value)
        case "--out": out = URL(fileURLWithPath: value)
        case "--picture": picture = URL(fileURLWithPath: value)
        default: throw PocketSDError("no option \(name)")
        }
    }

    private func number<Value: LosslessStringConvertible>(
        _ name: String, _ text: String
    ) throws -> Value {
        guard let value = Value(text) else {
            throw PocketSDError("\(name) \(text) is not a number")
        }
        return value
    }

    var request: Request {
        var request = Request(prompt: prompt)
        request.negativePrompt = negativePrompt
        request.seeds = seeds.isEmpty ? [0] : seeds
        request.guidanceScale = guidance
        (request.height, request.width) = (height, width)
        request.lowMemory = lowMemory
        return request
    }

    /// The table to play: what is not said comes from the package's default, "dpm++-2m/20".
    func table(of manifest: Manifest) throws -> (sampler: String, steps: Int) {
        let parts = manifest.defaultSampler.split(separator: "/")
        guard let name = sampler ?? parts.first.map(String.init),
            let count = steps ?? parts.last.flatMap({ Int($0) })
        else {
            throw PocketSDError("the package has no default sampler", mend: "--sampler, --steps")
        }
        return (name, count)
    }
}
