//! Links the view at the place of the driver's `libnvidia-ml.so.1`.

/// Path of the driver's own library in containers; also in `src/real.rs`.
const REAL: &str = "/run/gputenancy/driver/libnvidia-ml.so.1";

fn main() -> std::io::Result<()> {
    gputenancy_interpose::link::in_front_of("libnvidia-ml.so.1", REAL)
}
