import XCTest

@testable import PocketSDCore

/// Noise, samplers, pictures: against Python's answers.
final class NumbersTests: XCTestCase {
    func testPhiloxIsExact() throws {
        for example in try Golden.read("noise").member("philox").list() {
            func words(_ name: String) throws -> [UInt32] {
                try example.member(name).integers().map { UInt32($0) }
            }
            let counter = try words("counter"), key = try words("key")
            let found = Noise.philox(
                SIMD4(counter[0], counter[1], counter[2], counter[3]), key: SIMD2(key[0], key[1]))
            XCTAssertEqual([found.x, found.y, found.z, found.w], try words("words"))
        }
    }

    /// 1e-6: the last digit of a logarithm or a sine is the mathematics library's.
    func testNoise() throws {
        for example in try Golden.read("noise").member("gaussian").list() {
            let wanted = try example.member("values").floats()
            let found = Noise.gaussian(
                seed: try example.member("seed").word(),
                stream: try example.member("stream").word(),
                count: wanted.count)
            assertClose(found, wanted, relative: 1e-6, absolute: 1e-7)
        }
        XCTAssertEqual(Noise.gaussian(seed: 1, stream: 0, count: 0), [])
        XCTAssertEqual(Noise.stream(ofRow: 4), 5)
    }

    /// All operations round alike, so 1e-6 is generous.
    func testTablesPlayAsInPython() throws {
        let golden = try Golden.read("sampler")
        let tables = try golden.member("tables").list().map(SamplerTable.init(reading:))
        for example in try golden.member("cases").list() {
            let table = tables[try example.member("table").integer(0...tables.count - 1)]
            let strength = try example.optional("strength")?.number()
            let schedule = try strength.map(table.fromStrength) ?? table.fromNoise()
            let picture = strength.map { _ in Noise.gaussian(seed: 8, stream: 0, count: 6) }
            let unit = Noise.gaussian(seed: 7, stream: Noise.initial, count: 6)
            var timesteps: [Double] = []
            var latents: [[Float]] = []
            let last = try play(
                schedule, from: schedule.begin(noise: unit, picture: picture),
                evaluate: { x, timestep in
                    timesteps.append(timestep)
                    return x.map { (0.5 * $0 + 0.25) / (1 + abs($0)) - Float(timestep) / 2048 }
                },
                noise: { Noise.gaussian(seed: 7, stream: Noise.stream(ofRow: $0), count: 6) },
                each: { _, x in latents.append(x) })
            let wanted = try example.member("latents").list().map { try $0.floats() }
            let what = "\(table.scheduler) from \(strength.map { "\($0)" } ?? "noise")"
            XCTAssertEqual(timesteps, try example.member("timesteps").numbers(), what)
            XCTAssertEqual(latents.count, wanted.count, what)
            for (found, row) in zip(latents, wanted) {
                assertClose(found, row, relative: 1e-6, absolute: 1e-6, what)
            }
            XCTAssertEqual(last, latents.last)
        }
    }

    func testGuidance() throws {
        let golden = try Golden.read("sampler").member("guided")
        let found = guided(
            try golden.member("conditional").floats(), try golden.member("unconditional").floats(),
            scale: Float(try golden.member("scale").number()))
        assertClose(found, try golden.member("answer").floats(), relative: 1e-6, absolute: 0)
    }

    func testRowsWithoutNoiseDrawNone() throws {
        let table = try Golden.read("sampler").member("tables").list().map(
            SamplerTable.init(reading:))
        let still = try XCTUnwrap(table.first { $0.scheduler == "dpm++-2m" })
        _ = try play(
            still.fromNoise(), from: [1], evaluate: { x, _ in x },
            noise: { _ in
                XCTFail("noise was drawn")
                return [0]
            })
        assertRefused("3 values for 1") {
            _ = try play(
                still.fromNoise(), from: [1], evaluate: { _, _ in [1, 2, 3] }, noise: { _ in [0] })
        }
    }

    func testStrengthsThatPlayNothing() throws {
        let table = try SamplerTable(reading: Golden.read("sampler").member("tables").list()[0])
        for strength in [0, -1, 1.01, .nan, .infinity, 0.1] {
            assertRefused("strength") { _ = try table.fromStrength(strength) }
        }
    }

    func testPicturesToAndFromTheNetwork() throws {
        let golden = try Golden.read("pictures")
        let pair = try golden.member("to_network")
        let picture = try Picture(height: 2, width: 3, pixels: pair.member("pixels").bytes())
        XCTAssertEqual(picture.forNetwork(), try pair.member("values").floats())

        let back = try golden.member("from_network")
        let decoded = try Picture(
            height: 2, width: 2, fromNetwork: back.member("values").floats())
        XCTAssertEqual(decoded.pixels, try back.member("pixels").bytes())
        XCTAssertEqual(
            try Picture(height: 2, width: 3, fromNetwork: picture.forNetwork()), picture)
    }

    func testPreview() throws {
        let golden = try Golden.read("pictures").member("preview")
        let matrix = try golden.member("matrix").list().map { try $0.floats() }
        let wanted = try golden.member("pixels").bytes().chunked(2 * 3 * 3)
        for (latent, pixels) in zip(try golden.member("latents").floats().chunked(24), wanted) {
            let found = try preview(latent, height: 2, width: 3, matrix: matrix)
            let worst = zip(found.pixels, pixels).map { abs(Int($0) - Int($1)) }.max()
            XCTAssertLessThanOrEqual(worst ?? 255, 1)  // sums may be taken in any order
        }
        let broken = [Float.nan, .infinity, -.infinity, 0]
        let shown = try preview(broken, height: 1, width: 1, matrix: matrix)
        XCTAssertEqual(shown.pixels.count, 3)  // half-made latents have a preview too
        assertRefused("does not fit") {
            _ = try preview(broken, height: 1, width: 2, matrix: matrix)
        }
        assertRefused("does not fit") { _ = try preview(broken, height: 1, width: 1, matrix: []) }
    }

    func testPicturesThatAreNone() {
        assertRefused("NaN") { _ = try Picture(height: 1, width: 1, fromNetwork: [0, .nan, 0]) }
        assertRefused("do not make") { _ = try Picture(height: 1, width: 1, fromNetwork: [0]) }
        assertRefused("do not make") { _ = try Picture(height: 0, width: 1, pixels: []) }
        assertRefused("do not make") { _ = try Picture(height: .max, width: .max, pixels: []) }
    }
}
