//! Kernels of several processes on one engine, in the engine's own time: all are launched far ahead of the clock.

use silicon::{Machine, board::Variant, boards};

use super::*;

const MS: u64 = 1_000_000;

/// A node with one GPU that is not partitioned, and a time two seconds ahead from which kernels run.
fn node() -> (tempfile::TempDir, Store, u64) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    store.create(&Machine::power_on("node", boards::load("h100-80gb").unwrap(), Variant::Normal, 1, &[])).unwrap();
    (dir, store, now() + 2000 * MS)
}

/// The engine as the process with this slot uses it.
fn engine(store: &Store, slot: u64, threads: Option<u32>) -> Engine {
    activity::enter(store.dir(), slot).unwrap();
    Engine::open(store, (0, None), Some(slot), threads).unwrap()
}

/// A kernel that fills the GPU.
fn kernel(engine: &Engine, milliseconds: u64) -> Load {
    engine.load(milliseconds * MS, 512, 1024)
}

#[test]
fn time_sliced_kernels_of_two_processes_run_one_after_another() {
    let (_dir, store, begin) = node();
    let (first, second) = (engine(&store, 0, None), engine(&store, 1, None));
    assert_eq!(first.execute(begin, kernel(&first, 10)), begin + 10 * MS);
    assert_eq!(second.execute(begin, kernel(&second, 10)), begin + 20 * MS);
    assert_eq!(first.execute(begin, kernel(&first, 10)), begin + 30 * MS);
}

#[test]
fn kernel_fills_the_multiprocessors_of_the_board_of_its_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let (store, boards) = (Store::new(dir.path()), boards::load_list("a100-80gb+h100-80gb").unwrap());
    store.create(&Machine::with_boards("node", &boards, Variant::Normal, 2, &[])).unwrap();
    // 98 and 132 multiprocessors
    let active = [0, 1].map(|gpu| Engine::open(&store, (gpu, None), None, None).unwrap().load(132 * MS, 49, 1024).sm);
    assert_eq!(active, [66 * MS, 49 * MS]);
}

#[test]
fn mps_clients_run_at_the_same_time_each_as_slow_as_its_percentage() {
    let (_dir, store, begin) = node();
    let (first, second) = (engine(&store, 0, Some(25)), engine(&store, 1, Some(50)));
    assert_eq!(first.execute(begin, kernel(&first, 10)), begin + 40 * MS);
    assert_eq!(second.execute(begin, kernel(&second, 10)), begin + 20 * MS);
    // kernels of one process follow each other
    assert_eq!(second.execute(begin, kernel(&second, 10)), begin + 40 * MS);
    let gpu = activity::read(store.dir(), Meter::Gpu(0), begin + 1000 * MS).unwrap().total;
    assert_eq!(gpu, Load { time: 40 * MS, sm: 30 * MS, warps: 30 * MS }, "30 ms of a whole GPU within 40 ms");
}

#[test]
fn mps_clients_with_more_than_all_threads_share_the_gpu() {
    let (_dir, store, begin) = node();
    let clients = [engine(&store, 0, Some(100)), engine(&store, 1, Some(100)), engine(&store, 2, Some(50))];
    // alone, then with one other client, then with two
    let ends = clients.each_ref().map(|client| client.execute(begin, kernel(client, 10)) - begin);
    assert_eq!(ends, [10 * MS, 20 * MS, 50 * MS]);
    // the others have nothing at that time
    let later = begin + 100 * MS;
    assert_eq!(clients[0].execute(later, kernel(&clients[0], 10)), later + 10 * MS);
}

#[test]
fn process_that_takes_the_slot_of_an_mps_client_is_time_sliced_and_begins_at_zero() {
    let (_dir, store, begin) = node();
    let client = engine(&store, 0, Some(50));
    client.execute(begin, kernel(&client, 10));
    let (successor, other) = (engine(&store, 0, None), engine(&store, 1, Some(50)));
    let process = |slot| activity::read(store.dir(), Meter::Process(slot), begin + 1000 * MS).unwrap().total.time;
    assert_eq!(process(0), 0);
    assert_eq!(successor.execute(begin, kernel(&successor, 10)), begin + 30 * MS, "after what the GPU has");
    assert_eq!(other.execute(begin, kernel(&other, 10)), begin + 20 * MS, "no other client runs");
    assert_eq!([0, 1].map(process), [10 * MS, 20 * MS]);
}

#[test]
fn work_of_a_mig_device_counts_for_its_gpu_by_its_multiprocessors() {
    let (_dir, store, begin) = node();
    silicon::operations::partition(&store, 0, &["3g.40gb".to_owned()]).unwrap();
    let machine = store.read().unwrap();
    let device = machine.mig_devices()[0];
    let instance = (device.gi.id, device.ci.id);
    let mig = Engine::open(&store, (0, Some(instance)), None, None).unwrap();
    mig.execute(begin, mig.load(132 * MS, 30, 1024));
    let of = |meter| activity::read(store.dir(), meter, begin + 1000 * MS).unwrap().total;
    // 30 of its 60 multiprocessors, half of their warps; the GPU has 132
    assert_eq!(of(Meter::Mig(0, instance)), Load { time: 132 * MS, sm: 66 * MS, warps: 33 * MS });
    assert_eq!(of(Meter::Gpu(0)), Load { time: 60 * MS, sm: 30 * MS, warps: 15 * MS });
}
