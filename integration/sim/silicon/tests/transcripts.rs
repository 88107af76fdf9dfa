//! Published `nvidia-smi mig -cgi` transcripts: profiles requested without a placement, and the resulting ids.

use silicon::board::Variant::{self, Flipped, Normal};
use silicon::{Code, Machine, boards};

/// Profile ids in the order of the command line, and the GPU-instance id of each; `None` if it was refused.
type Transcript = (&'static str, Variant, &'static [u32], &'static [Option<u32>]);

const SEVEN: &[u32] = &[19; 7];

#[rustfmt::skip]
const TRANSCRIPTS: &[Transcript] = &[
    // NVIDIA's MIG user guide.
    ("a100-40gb", Normal, &[9, 9], &[Some(2), Some(1)]),
    ("a100-40gb", Normal, &[19, 14, 5], &[Some(13), Some(5), Some(1)]),
    ("a100-40gb", Normal, &[19, 19, 14, 9], &[Some(13), Some(11), Some(3), None]),
    ("a100-40gb", Normal, &[9, 19, 14, 19], &[Some(2), Some(7), Some(4), Some(8)]),
    ("a100-40gb", Normal, &[14, 19, 19, 19, 19, 19], &[Some(5), Some(13), Some(7), Some(8), Some(9), Some(10)]),
    ("a100-40gb", Normal, SEVEN, &[Some(13), Some(11), Some(12), Some(7), Some(8), Some(9), Some(10)]),
    // Users' transcripts.
    ("a100-40gb", Normal, &[9, 14, 19, 19], &[Some(2), Some(3), Some(9), Some(10)]),
    ("a100-40gb", Flipped, &[9, 19, 14, 19], &[Some(1), Some(11), Some(6), Some(12)]),
    ("a100-80gb", Normal, &[14, 14, 14, 20], &[Some(5), Some(3), Some(4), Some(13)]),
    ("a100-80gb", Flipped, &[9, 14, 19], &[Some(1), Some(5), Some(13)]),
    ("a100-80gb", Flipped, SEVEN, &[Some(9), Some(7), Some(8), Some(11), Some(12), Some(13), Some(14)]),
    ("h100-80gb", Normal, &[9, 14], &[Some(2), Some(3)]),
    ("h100-80gb", Normal, &[19, 19], &[Some(13), Some(11)]),
    ("h100-80gb", Normal, SEVEN, &[Some(13), Some(11), Some(12), Some(7), Some(8), Some(9), Some(10)]),
    ("h100-80gb", Flipped, SEVEN, &[Some(9), Some(7), Some(8), Some(11), Some(12), Some(13), Some(14)]),
    ("h100-94gb", Normal, SEVEN, &[Some(13), Some(11), Some(12), Some(7), Some(8), Some(9), Some(10)]),
    ("h100-94gb", Normal, &[15, 15, 15], &[Some(5), Some(3), Some(4)]),
    ("h100-94gb", Flipped, &[9, 15, 19], &[Some(1), Some(5), Some(13)]),
    ("a30-24gb", Normal, &[14], &[Some(3)]),
    ("rtx-pro-6000-96gb", Normal, &[14, 14, 14, 14], &[Some(3), Some(4), Some(5), Some(6)]),
    ("rtx-pro-6000-96gb", Normal, &[5, 14, 14], &[Some(1), Some(5), Some(6)]),
];

#[test]
fn published_transcripts_are_reproduced() {
    for (board, variant, profiles, ids) in TRANSCRIPTS {
        let mut machine = Machine::power_on("n", boards::load(board).unwrap(), *variant, 1, &[]);
        machine.gpus[0].mig = true;
        let got: Vec<Option<u32>> = profiles
            .iter()
            .map(|profile| match machine.create_gi(0, *profile, None) {
                Ok(gi) => Some(gi.id),
                Err(code) => {
                    assert_eq!(code, Code::INSUFFICIENT_RESOURCES);
                    None
                }
            })
            .collect();
        assert_eq!(&got, ids, "{board} {variant:?} -cgi {profiles:?}");
    }
}

#[test]
fn hopper_double_memory_instance_defaults_to_compute_profile_7() {
    let board = boards::load("h100-94gb").unwrap();
    let of = board.profile(15).unwrap();
    let widest = silicon::compute_profile::profiles(&board, of).into_iter().max_by_key(|p| (p.slices, p.sm)).unwrap();
    assert_eq!((widest.id, widest.sm), (7, 26));
}
