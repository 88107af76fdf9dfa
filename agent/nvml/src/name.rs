//! Profile names for drivers that do not report them.

/// Suffix of a profile's name, by NVML's enum.
fn suffix(profile_enum: u32) -> &'static str {
    match profile_enum {
        7 | 8 => "+me",
        10..=12 | 17 => "+gfx",
        13 | 14 => "-me",
        15 | 16 => "+me.all",
        _ => "",
    }
}

/// The name that NVIDIA's tools give a profile: compute slices, and the memory as eighths of the board, rounded up, in GB.
pub fn profile_name(profile_enum: u32, slices: u32, memory_mib: u64, total_mib: u64) -> String {
    let total_mib = total_mib.max(1);
    let eighths = (memory_mib * 8).div_ceil(total_mib);
    let gigabytes = (eighths * total_mib.div_ceil(1024) + 4) / 8;
    format!("{slices}g.{gigabytes}gb{}", suffix(profile_enum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_names_follow_the_rule_of_nvidia() {
        assert_eq!(profile_name(0, 1, 4864, 40_960), "1g.5gb");
        assert_eq!(profile_name(7, 1, 4864, 40_960), "1g.5gb+me");
        assert_eq!(profile_name(2, 3, 19_968, 40_960), "3g.20gb");
        assert_eq!(profile_name(9, 1, 20_096, 81_559), "1g.20gb");
        assert_eq!(profile_name(4, 7, 81_152, 81_559), "7g.80gb");
        assert_eq!(profile_name(15, 1, 24_192, 97_887), "1g.24gb+me.all");
        assert_eq!(profile_name(13, 1, 24_192, 97_887), "1g.24gb-me");
    }
}
