/// 8-bit RGB, row by row.
public struct Picture: Equatable, Sendable {
    public let height: Int
    public let width: Int
    public let pixels: [UInt8]  // [height, width, 3]

    public init(height: Int, width: Int, pixels: [UInt8]) throws {
        guard height > 0, width > 0, elementCount([height, width, 3]) == pixels.count else {
            throw PocketSDError("\(pixels.count) bytes do not make a picture of \(width)x\(height)")
        }
        self.height = height
        self.width = width
        self.pixels = pixels
    }

    /// [h, w, 3] in 0..255 -> [3, h, w] in -1..1
    public func forNetwork() -> [Float] {
        let area = height * width
        return (0..<3 * area).map { i in Float(pixels[i % area * 3 + i / area]) / 127.5 - 1 }
    }

    /// [3, h, w] around -1..1 -> [h, w, 3] in 0..255
    public init(height: Int, width: Int, fromNetwork values: some Collection<Float>) throws {
        guard values.allSatisfy(\.isFinite) else {
            throw PocketSDError("the decoder's picture holds NaN or infinity: an overflow in fp16?")
        }
        let planes = Array(values), area = height * width
        guard planes.count == 3 * area else {
            throw PocketSDError(
                "\(planes.count) values do not make a picture of \(width)x\(height)")
        }
        let pixels = (0..<3 * area).map { i in
            let scaled = (min(max(planes[i % 3 * area + i / 3], -1), 1) + 1) * 127.5
            return UInt8(scaled.rounded(.toNearestOrEven))
        }
        try self.init(height: height, width: width, pixels: pixels)
    }
}

/// A small picture straight from one latent [c, h, w]: RGB = matrix (channels, 1).
public func preview(
    _ latent: some Collection<Float>, height: Int, width: Int, matrix: [[Float]]
) throws -> Picture {
    let values = Array(latent), area = height * width
    let channels = (matrix.first?.count ?? 0) - 1
    guard matrix.count == 3, channels > 0, values.count == channels * area,
        matrix.allSatisfy({ $0.count == channels + 1 })
    else { throw PocketSDError("the preview's matrix does not fit the latent") }
    let planes = matrix.flatMap { row in
        (0..<area).map { cell in
            let sum = (0..<channels).reduce(Float(0)) { $0 + row[$1] * values[$1 * area + cell] }
            let value = sum + row[channels]
            return value.isNaN ? 0 : min(max(value, -1), 1)
        }
    }
    return try Picture(height: height, width: width, fromNetwork: planes)
}
