//! The measured program: it uses CUDA as programs do, and prints one number.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    hint::black_box,
    ptr::null_mut,
    time::{Duration, Instant},
};

use libloading::Library;

type Handle = *mut c_void;
type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut u64,
    *mut c_void,
) -> c_int;

/// Rounds of a measurement, of which the shortest counts: others on the machine disturbed it least.
pub const ROUNDS: u32 = 20;
/// Before this time, kernels are not counted: a share that was idle has some time in advance.
const WARM_UP: Duration = Duration::from_millis(500);

/// Calls a function of the library by its name.
macro_rules! cuda {
    ($library:expr, $name:ident($($argument:expr => $ty:ty),* $(,)?)) => {{
        // SAFETY: the type is that of cuda.h, and the arguments are what it demands.
        let code = unsafe {
            let symbol = $library.get::<unsafe extern "C" fn($($ty),*) -> c_int>(stringify!($name).as_bytes());
            symbol.unwrap()($($argument),*)
        };
        assert_eq!(code, 0, stringify!($name));
    }};
}

/// A function of the library, looked up once.
macro_rules! function {
    ($library:expr, $name:ident: $ty:ty) => {{
        // SAFETY: the type is that of cuda.h.
        let symbol = unsafe { $library.get::<$ty>(stringify!($name).as_bytes()) };
        symbol.unwrap()
    }};
}

/// A program with a context on the first GPU.
struct Program {
    library: Library,
}

/// `start`, `time CALL COUNT LIVE` or `share MICROSECONDS MILLISECONDS limited|free`.
pub fn run(arguments: &[String]) {
    let begin = Instant::now();
    let program = Program::start();
    let number = |at: usize| arguments[at].parse::<u32>().unwrap();
    let answer = match arguments[0].as_str() {
        "start" => {
            program.allocate();
            begin.elapsed().as_nanos() as f64
        }
        "time" => program.time(&arguments[1], number(2), number(3)),
        "share" => {
            let (micros, time) = (number(1), Duration::from_millis(number(2).into()));
            if arguments[3] == "free" { program.unlimited(micros, time) } else { program.limited(micros, time) }
        }
        other => panic!("{other}"),
    };
    println!("{answer}");
}

impl Program {
    fn start() -> Self {
        // SAFETY: loading CUDA's library runs its constructors, as in every program that uses it.
        let library = unsafe { Library::new("libcuda.so.1") }.unwrap();
        let mut context: Handle = null_mut();
        cuda!(library, cuInit(0 => c_uint));
        cuda!(library, cuDevicePrimaryCtxRetain(&raw mut context => *mut Handle, 0 => c_int));
        cuda!(library, cuCtxSetCurrent(context => Handle));
        Self { library }
    }

    fn allocate(&self) -> u64 {
        let mut pointer = 0;
        cuda!(self.library, cuMemAlloc_v2(&raw mut pointer => *mut u64, 1024 => usize));
        pointer
    }

    fn stream(&self) -> Handle {
        let mut stream: Handle = null_mut();
        cuda!(self.library, cuStreamCreate(&raw mut stream => *mut Handle, 1 => c_uint));
        stream
    }

    /// A kernel that takes as many nanoseconds as its argument says.
    fn kernel(&self) -> Handle {
        let (mut module, mut function): (Handle, Handle) = (null_mut(), null_mut());
        let (image, name) = (c"".as_ptr(), c"work".as_ptr());
        cuda!(self.library, cuModuleLoadData(&raw mut module => *mut Handle, image.cast() => *const c_void));
        let to = &raw mut function;
        cuda!(self.library, cuModuleGetFunction(to => *mut Handle, module => Handle, name => *const c_char));
        function
    }

    /// Nanoseconds of a call.
    fn time(&self, call: &str, count: u32, live: u32) -> f64 {
        let alloc = function!(self.library, cuMemAlloc_v2: unsafe extern "C" fn(*mut u64, usize) -> c_int);
        let free = function!(self.library, cuMemFree_v2: unsafe extern "C" fn(u64) -> c_int);
        let info = function!(self.library, cuMemGetInfo_v2: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int);
        let launch = function!(self.library, cuLaunchKernel: LaunchKernel);
        let (kernel, stream) = (self.kernel(), self.stream());
        self.allocate();
        let (mut nanoseconds, mut pointer, mut left, mut total) = (0_u64, 0, 0, 0);
        for _ in 0..live {
            self.allocate();
        }
        // the calls have the types of cuda.h, and write to variables of this function
        let mut once = || match call {
            // SAFETY: as above; only what was allocated is freed.
            "pair" => unsafe { alloc(&raw mut pointer, black_box(1024)) | free(pointer) },
            // SAFETY: as above.
            "info" => unsafe { info(&raw mut left, &raw mut total) },
            // SAFETY: as above, with a function of a loaded module and its argument.
            "launch" => unsafe {
                let mut arguments = [&raw mut nanoseconds];
                launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut())
            },
            other => panic!("{other}"),
        };
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let failed = (0..count).fold(0, |failed, _| failed | once());
            best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(count));
            assert_eq!(failed, 0, "{call}");
        }
        best
    }

    fn launcher(&self, micros: u32) -> impl Fn() + '_ {
        let launch = function!(self.library, cuLaunchKernel: LaunchKernel);
        let (kernel, stream) = (self.kernel(), self.stream());
        move || {
            let mut nanoseconds = u64::from(micros) * 1000;
            let mut arguments = [&raw mut nanoseconds];
            // SAFETY: the type is that of cuda.h; a function of a loaded module with its argument.
            let code = unsafe { launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut()) };
            assert_eq!(code, 0, "cuLaunchKernel");
        }
    }

    /// Percent of the time in which kernels run whose launches wait for their part of it: from one launch to a later one, so that neither the
    /// time in advance nor what is paid for later counts.
    fn limited(&self, micros: u32, time: Duration) -> f64 {
        let launch = self.launcher(micros);
        let begin = Instant::now();
        while begin.elapsed() < WARM_UP {
            launch();
        }
        let (begin, mut kernels) = (Instant::now(), 0);
        while begin.elapsed() < time {
            launch();
            kernels += 1;
        }
        percent(kernels, micros, begin.elapsed())
    }

    /// Percent of the time in which kernels run that are launched at once, 100 ms of them at a time.
    fn unlimited(&self, micros: u32, time: Duration) -> f64 {
        let launch = self.launcher(micros);
        let (begin, mut kernels) = (Instant::now(), 0);
        while begin.elapsed() < time {
            for _ in 0..100_000 / micros {
                launch();
                kernels += 1;
            }
            cuda!(self.library, cuCtxSynchronize());
        }
        percent(kernels, micros, begin.elapsed())
    }
}

fn percent(kernels: u32, micros: u32, time: Duration) -> f64 {
    f64::from(kernels) * f64::from(micros) / 1e4 / time.as_secs_f64()
}
