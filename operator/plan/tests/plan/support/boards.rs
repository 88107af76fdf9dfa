//! Boards as NVML describes them: one with eight memory slices, one with four, one with twelve, one without MIG.

use gputenancy_crds::{Board, BoardProfile, MemoryText};

type Row = (i32, &'static str, i32, i64, i32, &'static [i32], i32, [i32; 5]);

fn board(product: &str, memory: i64, slices: i32, memory_slices: i32, reset: bool, rows: &[Row]) -> Board {
    let profile = |(id, name, slices, memory, size, starts, max, engines): &Row| BoardProfile {
        id: *id,
        name: (*name).into(),
        slices: *slices,
        memory: MemoryText::from_mib(*memory),
        size: *size,
        starts: starts.to_vec(),
        max: *max,
        engines: engines.to_vec(),
    };
    Board {
        product: product.into(),
        memory: MemoryText::from_mib(memory),
        reserved: None,
        vgpu: None,
        slices,
        memory_slices,
        mode_needs_reset: reset,
        profiles: rows.iter().map(profile).collect(),
    }
}

pub fn a100() -> Board {
    let rows: &[Row] = &[
        (19, "1g.10gb", 1, 9728, 1, &[0, 1, 2, 3, 4, 5, 6], 7, [1, 0, 0, 0, 0]),
        (20, "1g.10gb+me", 1, 9728, 1, &[0, 1, 2, 3, 4, 5, 6], 1, [1, 1, 0, 1, 1]),
        (15, "1g.20gb", 1, 19968, 2, &[0, 2, 4, 6], 4, [1, 1, 0, 0, 0]),
        (14, "2g.20gb", 2, 19968, 2, &[0, 2, 4], 3, [2, 1, 0, 0, 0]),
        (9, "3g.40gb", 3, 40448, 4, &[0, 4], 2, [3, 2, 0, 0, 0]),
        (5, "4g.40gb", 4, 40448, 4, &[0], 1, [4, 2, 0, 0, 0]),
        (0, "7g.80gb", 7, 81152, 8, &[0], 1, [7, 5, 0, 1, 1]),
    ];
    board("NVIDIA-A100-SXM4-80GB", 81920, 7, 8, true, rows)
}

pub fn a30() -> Board {
    let rows: &[Row] = &[
        (14, "1g.6gb", 1, 5952, 1, &[0, 1, 2, 3], 4, [1, 1, 0, 0, 0]),
        (5, "2g.12gb", 2, 11968, 2, &[0, 2], 2, [2, 2, 0, 0, 0]),
        (6, "2g.12gb+me", 2, 11968, 2, &[0, 2], 1, [2, 2, 0, 1, 1]),
        (0, "4g.24gb", 4, 24000, 4, &[0], 1, [4, 4, 0, 1, 1]),
    ];
    board("NVIDIA-A30", 24576, 4, 4, true, rows)
}

pub fn rtx6000() -> Board {
    let rows: &[Row] = &[
        (14, "1g.24gb", 1, 24192, 3, &[0, 3, 6, 9], 4, [1, 1, 1, 1, 0]),
        (21, "1g.24gb+me", 1, 24192, 3, &[0, 3, 6, 9], 1, [1, 1, 1, 1, 1]),
        (65, "1g.24gb+me.all", 1, 24192, 3, &[0, 3, 6, 9], 1, [1, 4, 4, 4, 1]),
        (67, "1g.24gb-me", 1, 24192, 3, &[0, 3, 6, 9], 4, [1, 0, 0, 0, 0]),
        (5, "2g.48gb", 2, 48512, 6, &[0, 6], 2, [2, 2, 2, 2, 0]),
        (0, "4g.96gb", 4, 97408, 12, &[0], 1, [4, 4, 4, 4, 1]),
    ];
    board("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97887, 4, 12, false, rows)
}

pub fn t4() -> Board {
    board("Tesla-T4", 15360, 0, 0, false, &[])
}
