//! A machine whose GPUs have different boards.

use std::ops::Range;

use silicon::board::Variant;
use silicon::machine::MigDevice;
use silicon::{Code, Machine, boards, physical};

/// An A100, an H100 and two T4, with MIG mode in the `InfoROM` of all.
fn machine() -> Machine {
    let boards = boards::load_list("a100-80gb+h100-94gb+t4-16gb").unwrap();
    Machine::with_boards("n", &boards, Variant::Normal, 4, &[true; 4])
}

#[test]
fn each_gpu_changes_mode_and_has_profiles_as_its_board() {
    let mut m = machine();
    // only Ampere keeps the mode
    assert_eq!(m.gpus.iter().map(|gpu| gpu.mig).collect::<Vec<_>>(), [true, false, false, false]);
    assert_eq!(m.set_mig_mode(0, false, &[]), Ok(Err(Code::RESET_REQUIRED)));
    assert_eq!(m.set_mig_mode(0, true, &[]), Ok(Ok(())));
    assert_eq!(m.set_mig_mode(1, true, &[]), Ok(Ok(())));
    assert_eq!(m.set_mig_mode(2, true, &[]), Err(Code::NOT_SUPPORTED));
    assert_eq!(m.inforom_modes(), [true, false, false, false]);
    for gpu in [0, 1] {
        let gi = m.create_gi(gpu, 19, None).unwrap().id;
        m.create_ci(gpu, gi, 0, None).unwrap();
    }
    let names: Vec<String> = m.mig_devices().iter().map(MigDevice::profile_name).collect();
    assert_eq!(names, ["1g.10gb", "1g.12gb"]);
}

#[test]
fn memory_of_gpus_of_different_size_does_not_overlap() {
    let machine = machine();
    let ranges: Vec<Range<u64>> = (0..4).map(|gpu| physical::of_device(&machine, gpu, None).unwrap()).collect();
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "{ranges:?}");
    let mib: Vec<u64> = ranges.iter().map(|range| (range.end - range.start) >> 20).collect();
    // without the 512 MiB of the driver
    assert_eq!(mib, [81_408, 95_318, 14_848, 14_848]);
}
