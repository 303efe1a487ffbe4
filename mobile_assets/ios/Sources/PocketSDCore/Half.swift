/// fp16 by its bits, as Swift has no Float16 on Macs with Intel processors.
enum Half {
    static func float(_ bits: UInt16) -> Float {
        let sign = UInt32(bits & 0x8000) << 16
        let exponent = UInt32(bits >> 10 & 0x1F), fraction = UInt32(bits & 0x3FF)
        switch exponent {
        case 0:  // zero and what is too small for an exponent of its own
            let size = Float(fraction) * 0x1p-24
            return sign == 0 ? size : -size
        case 31: return Float(bitPattern: sign | 0x7F80_0000 | fraction << 13)
        default: return Float(bitPattern: sign | (exponent + 112) << 23 | fraction << 13)
        }
    }

    /// The nearest, to even where two are as near; infinity beyond the end.
    static func bits(_ value: Float) -> UInt16 {
        let pattern = value.bitPattern
        let sign = UInt16(truncatingIfNeeded: pattern >> 16) & 0x8000
        let size = pattern & 0x7FFF_FFFF
        if size > 0x7F80_0000 { return sign | 0x7E00 }  // not a number
        if size >= 0x477F_F000 { return sign | 0x7C00 }  // 65520 and above
        if size < 0x3880_0000 {  // below 2^-14
            let steps = (Float(bitPattern: size) * 0x1p24).rounded(.toNearestOrEven)
            return sign | UInt16(steps)
        }
        let odd = size >> 13 & 1
        return sign | UInt16(truncatingIfNeeded: (size + 0xFFF + odd) >> 13 - (112 << 10))
    }
}
