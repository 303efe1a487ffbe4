import Foundation

/// The path of `name` in `folder`, for names that come from a file we did not write.
public func inside(_ folder: URL, _ name: String) throws -> URL {
    guard name.utf8.count <= 255,
        name.split(separator: "/", omittingEmptySubsequences: false)
            .allSatisfy({ isSafe($0) })
    else { throw PocketSDError("unsafe file name \(quoted(name))", at: folder) }
    let path = folder.appendingPathComponent(name)
    let home = folder.resolvingSymlinksInPath().pathComponents
    guard path.resolvingSymlinksInPath().pathComponents.starts(with: home) else {
        throw PocketSDError("file name \(quoted(name)) leads out of the folder", at: folder)
    }
    return path
}

/// ASCII letters, digits and _ + . - with neither of the last two in front.
private func isSafe(_ part: Substring) -> Bool {
    guard let first = part.utf8.first, first != UInt8(ascii: "."), first != UInt8(ascii: "-")
    else { return false }
    return part.unicodeScalars.allSatisfy {
        $0.isASCII
            && ($0.properties.isAlphabetic || ("0"..."9").contains($0)
                || "_+.-".unicodeScalars.contains($0))
    }
}

/// A small file whole; `limit` bounds what a damaged one can make us hold.
func contents(of file: URL, limit: Int = 64 << 20) throws -> [UInt8] {
    guard let size = regularFileSize(file) else {
        throw PocketSDError("there is no such file", at: file)
    }
    guard size <= limit else {
        throw PocketSDError("\(size) bytes are too many for what it should hold", at: file)
    }
    do {
        return [UInt8](try Data(contentsOf: file))
    } catch {
        throw PocketSDError("cannot be read, \(error.localizedDescription)", at: file)
    }
}

/// nil for what is not there or is no file.
func regularFileSize(_ file: URL) -> Int? {
    let real = file.resolvingSymlinksInPath().path
    let attributes = try? FileManager.default.attributesOfItem(atPath: real)
    guard attributes?[.type] as? FileAttributeType == .typeRegular else { return nil }
    return (attributes?[.size] as? NSNumber)?.intValue
}
