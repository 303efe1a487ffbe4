import Foundation
import PocketSDCore

do {
    switch try Command(Array(CommandLine.arguments.dropFirst())) {
    case .help: print(Command.usage)
    case .check(let package, let prompt): try check(package, prompt: prompt).forEach { print($0) }
    case .measure(let package, let options): try measure(package, options)
    }
} catch {
    say("pocketsd-bench: \(error)")
    exit(2)
}
