import Foundation

/// Gaussian noise that is the same on every device: Philox4x32-10 and Box-Muller, as
/// `runtime_py/noise.py` defines them. Element i is a pure function of (seed, stream, i).
public enum Noise {
    /// The stream of the initial latent.
    public static let initial: UInt64 = 0

    /// The stream of row k's fresh noise.
    public static func stream(ofRow k: Int) -> UInt64 { UInt64(k) + 1 }

    /// Unit normal noise. More of it begins with the same numbers.
    public static func gaussian(seed: UInt64, stream: UInt64, count: Int) -> [Float] {
        var values: [Float] = []
        values.reserveCapacity(count + 3)
        let key = SIMD2(low(seed), high(seed))
        for block in 0..<UInt64((count + 3) / 4) {
            let counter = SIMD4(low(block), high(block), low(stream), high(stream))
            let words = philox(counter, key: key)
            for pair in [(words.x, words.y), (words.z, words.w)] {
                let radius = (-2 * log(uniform(pair.0))).squareRoot()
                let angle = 2 * Double.pi * uniform(pair.1)
                values.append(Float(radius * cos(angle)))
                values.append(Float(radius * sin(angle)))
            }
        }
        return Array(values.prefix(count))
    }

    static func philox(_ counter: SIMD4<UInt32>, key: SIMD2<UInt32>) -> SIMD4<UInt32> {
        var (c, k) = (counter, key)
        for _ in 0..<10 {
            let p0 = c.x.multipliedFullWidth(by: 0xD251_1F53)
            let p1 = c.z.multipliedFullWidth(by: 0xCD9E_8D57)
            c = SIMD4(p1.high ^ c.y ^ k.x, p1.low, p0.high ^ c.w ^ k.y, p0.low)
            k &+= SIMD2(0x9E37_79B9, 0xBB67_AE85)
        }
        return c
    }

    /// Never 0 or 1.
    private static func uniform(_ word: UInt32) -> Double { (Double(word) + 0.5) / 4_294_967_296 }

    private static func low(_ word: UInt64) -> UInt32 { UInt32(truncatingIfNeeded: word) }
    private static func high(_ word: UInt64) -> UInt32 { UInt32(truncatingIfNeeded: word >> 32) }
}
