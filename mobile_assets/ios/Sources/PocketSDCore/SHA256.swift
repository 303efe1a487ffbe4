import Foundation

#if canImport(CryptoKit)
import CryptoKit
private typealias StreamDigest = SHA256
#else
private typealias StreamDigest = PlainSHA256
#endif

/// SHA-256 in lower-case hexadecimal.
public func sha256(_ bytes: some Sequence<UInt8>) -> String {
    var digest = StreamDigest()
    digest.update(data: Data(bytes))
    return hexadecimal(digest.finalize())
}

/// Hashes a file in slices; `advance` is told the bytes of each as they go by.
public func sha256(of file: URL, advance: (Int) throws -> Void = { _ in }) throws -> String {
    guard let handle = try? FileHandle(forReadingFrom: file) else {
        throw PocketSDError("cannot be read", at: file)
    }
    defer { try? handle.close() }
    var digest = StreamDigest()
    while true {
        let slice: Data
        do {
            slice = try handle.read(upToCount: 1 << 22) ?? Data()
        } catch {
            throw PocketSDError("cannot be read, \(error.localizedDescription)", at: file)
        }
        if slice.isEmpty { return hexadecimal(digest.finalize()) }
        digest.update(data: slice)
        try advance(slice.count)
    }
}

private func hexadecimal(_ bytes: some Sequence<UInt8>) -> String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
}

/// FIPS 180-4, for systems without CryptoKit.
struct PlainSHA256 {
    private var state: [UInt32] = [
        0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a,
        0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
    ]
    private var waiting: [UInt8] = []  // less than a block
    private var length: UInt64 = 0

    mutating func update(data: Data) {
        length += UInt64(data.count)
        let bytes = waiting + data
        let whole = bytes.count & ~63
        bytes.withUnsafeBufferPointer { pointer in
            for start in stride(from: 0, to: whole, by: 64) {
                absorb(UnsafeBufferPointer(rebasing: pointer[start..<start + 64]))
            }
        }
        waiting = Array(bytes[whole...])
    }

    mutating func finalize() -> [UInt8] {
        let bits = length << 3
        let padding = (119 - waiting.count) % 64  // up to 8 bytes before the end of a block
        let end = (0..<8).map { UInt8(truncatingIfNeeded: bits >> (56 - 8 * UInt64($0))) }
        update(data: Data([0x80] + [UInt8](repeating: 0, count: padding) + end))
        return state.flatMap { word in
            [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: word >> $0) }
        }
    }

    private mutating func absorb(_ block: UnsafeBufferPointer<UInt8>) {
        withUnsafeTemporaryAllocation(of: UInt32.self, capacity: 64) { w in
            for i in 0..<16 {
                let high = UInt32(block[4 * i]) << 24 | UInt32(block[4 * i + 1]) << 16
                w[i] = high | UInt32(block[4 * i + 2]) << 8 | UInt32(block[4 * i + 3])
            }
            for i in 16..<64 {
                let a = w[i - 15], b = w[i - 2]
                let first = turned(a, 7) ^ turned(a, 18) ^ a >> 3
                let second = turned(b, 17) ^ turned(b, 19) ^ b >> 10
                w[i] = w[i - 16] &+ first &+ w[i - 7] &+ second
            }
            var (a, b, c, d) = (state[0], state[1], state[2], state[3])
            var (e, f, g, h) = (state[4], state[5], state[6], state[7])
            for i in 0..<64 {
                let big = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)
                let first = h &+ big &+ (e & f ^ ~e & g) &+ PlainSHA256.constants[i] &+ w[i]
                let small = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)
                let second = small &+ (a & b ^ a & c ^ b & c)
                (h, g, f, e, d, c, b, a) = (g, f, e, d &+ first, c, b, a, first &+ second)
            }
            for (i, word) in [a, b, c, d, e, f, g, h].enumerated() { state[i] &+= word }
        }
    }

    /// The first 32 bits of the fractions of the cube roots of the first 64 primes.
    private static let constants: [UInt32] = {
        let primes = (2...311).filter { n in !(2..<n).contains { n % $0 == 0 } }
        return primes.map { prime in
            // The largest root with root^3 <= prime * 2^96, of which the last 32 bits are kept.
            var root: UInt64 = 0
            for bit in (0..<36).reversed() {
                let tried = root | 1 << UInt64(bit)
                let (high, low) = tried.multipliedFullWidth(by: tried)  // below 2^72
                let cube = PlainSHA256.times(high, low, tried)
                if cube <= (UInt64(prime) << 32, 0) { root = tried }
            }
            return UInt32(truncatingIfNeeded: root)
        }
    }()

    /// (high, low) * factor in 128 bits, where it fits.
    private static func times(_ high: UInt64, _ low: UInt64, _ factor: UInt64) -> (UInt64, UInt64) {
        let product = low.multipliedFullWidth(by: factor)
        return (high * factor + product.high, product.low)
    }
}

private func turned(_ word: UInt32, _ bits: UInt32) -> UInt32 { word >> bits | word << (32 - bits) }
