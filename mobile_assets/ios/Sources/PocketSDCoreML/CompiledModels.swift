#if canImport(CoreML)
import CoreML
import Foundation
import PocketSDCore

/// Compiled models on this device, so that only the first start waits for the compiler.
///
/// The folder is named after the package's own digest and the system's version: another package,
/// or another compiler, never meets files that it did not make.
public struct CompiledModels {
    public let folder: URL

    public init(package: Package, within caches: URL? = nil) throws {
        let caches =
            try caches
            ?? FileManager.default.url(
                for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let version = ProcessInfo.processInfo.operatingSystemVersionString
        let words = version.map { $0.isLetter || $0.isNumber || $0 == "." ? $0 : "-" }
        folder = caches.appendingPathComponent("pocketsd")
            .appendingPathComponent("\(package.manifest.sha256.prefix(32))_\(String(words))")
    }

    /// The compiled form of a model, and the seconds it took if it had to be made.
    func compiled(_ model: URL, name: String) throws -> (model: URL, seconds: Double?) {
        if model.pathExtension == "mlmodelc" { return (model, nil) }
        let flat = name.replacingOccurrences(of: "/", with: "_")
        let place = folder.appendingPathComponent(flat).appendingPathExtension("mlmodelc")
        if FileManager.default.fileExists(atPath: place.path) { return (place, nil) }
        let start = Date()
        do {
            try FileManager.default.createDirectory(
                at: folder, withIntermediateDirectories: true)
            let made = try MLModel.compileModel(at: model)
            // Compiled elsewhere and then moved: what has this name is whole.
            try FileManager.default.moveItem(at: made, to: place)
        } catch {
            throw PocketSDError(
                "Core ML cannot compile it, \(error.localizedDescription)", at: model)
        }
        return (place, Date().timeIntervalSince(start))
    }

    /// Frees the space; the next start compiles again.
    public func remove() throws {
        if FileManager.default.fileExists(atPath: folder.path) {
            try FileManager.default.removeItem(at: folder)
        }
    }
}
#endif
