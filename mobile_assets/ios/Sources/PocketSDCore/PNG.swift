import Foundation

extension Picture {
    /// The picture as a PNG file, without compression: simple, and the same everywhere.
    public func png() -> Data {
        var rows: [UInt8] = []
        rows.reserveCapacity(height * (3 * width + 1))
        for y in 0..<height {
            rows.append(0)  // no filter
            rows += pixels[y * 3 * width..<(y + 1) * 3 * width]
        }
        let header = bigEndian(UInt32(width)) + bigEndian(UInt32(height)) + [8, 2, 0, 0, 0]
        let signature: [UInt8] = [0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x1A, 0x0A]
        return Data(
            signature + chunk("IHDR", header) + chunk("IDAT", stored(rows)) + chunk("IEND", []))
    }
}

/// zlib's frame around blocks that are only copied.
private func stored(_ bytes: [UInt8]) -> [UInt8] {
    var found: [UInt8] = [0x78, 0x01]
    for start in stride(from: 0, to: bytes.count, by: 65535) {
        let end = min(start + 65535, bytes.count)
        let size = UInt16(end - start)
        found.append(end == bytes.count ? 1 : 0)
        found += [size, ~size].flatMap { [UInt8(truncatingIfNeeded: $0), UInt8($0 >> 8)] }
        found += bytes[start..<end]
    }
    var (a, b): (UInt32, UInt32) = (1, 0)  // Adler-32
    for byte in bytes {
        a = (a + UInt32(byte)) % 65521
        b = (b + a) % 65521
    }
    return found + bigEndian(b << 16 | a)
}

private func chunk(_ name: String, _ content: [UInt8]) -> [UInt8] {
    let body = Array(name.utf8) + content
    return bigEndian(UInt32(content.count)) + body + bigEndian(crc32(body))
}

func crc32(_ bytes: [UInt8]) -> UInt32 {
    ~bytes.reduce(~UInt32(0)) { crcTable[Int(UInt8(truncatingIfNeeded: $0) ^ $1)] ^ $0 >> 8 }
}

private let crcTable: [UInt32] = (0..<256).map { byte in
    (0..<8).reduce(UInt32(byte)) { crc, _ in crc & 1 == 1 ? 0xEDB8_8320 ^ crc >> 1 : crc >> 1 }
}

private func bigEndian(_ word: UInt32) -> [UInt8] {
    [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: word >> $0) }
}
