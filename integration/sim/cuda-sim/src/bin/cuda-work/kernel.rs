//! A kernel that works for a number of iterations, and CUDA's streams, events and graphs around it.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use libloading::Library;

use crate::Failed;

/// A stream, event, function or graph.
pub type Handle = *mut c_void;

/// The result depends on every iteration, so that none is left out. The simulated GPU takes one nanosecond for each.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 iterations, .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .u64 %n, %x, %o;
    ld.param.u64 %n, [iterations];
    ld.param.u64 %o, [out];
    mov.u64 %x, 1;
again:
    setp.eq.u64 %p1, %n, 0;
    @%p1 bra end;
    mad.lo.u64 %x, %x, %x, %n;
    sub.u64 %n, %n, 1;
    bra again;
end:
    setp.ne.u64 %p2, %x, 0;
    @%p2 bra done;
    cvta.to.global.u64 %o, %o;
    st.global.u64 [%o], %x;
done:
    ret;
}
\0";

/// Writes to an address at which no memory is.
const WRONG: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry wrong()
{
    .reg .u64 %a;
    mov.u64 %a, 0x7f0000000000;
    st.global.u64 [%a], %a;
    ret;
}
\0";

/// Blocks of a launch if nothing else is wanted, and threads of a block: they fill the largest GPU, so that kernels of several streams do not run at the same time.
pub const BLOCKS: c_uint = 512;
const THREADS: c_uint = 1024;

/// The kernel.
pub struct Kernel<'l> {
    cuda: &'l Library,
    function: Handle,
    /// Blocks of a launch.
    blocks: c_uint,
    /// Where it would write.
    out: u64,
}

impl<'l> Kernel<'l> {
    /// Loads it into the current context.
    pub fn load(cuda: &'l Library) -> Result<Self, Failed> {
        let (mut module, mut function, mut out): (Handle, Handle, u64) = (null_mut(), null_mut(), 0);
        cuda!(cuda, cuModuleLoadData(&raw mut module => *mut Handle, PTX.as_ptr().cast() => *const c_void))?;
        let name = c"work".as_ptr();
        cuda!(cuda, cuModuleGetFunction(&raw mut function => *mut Handle, module => Handle, name => *const c_char))?;
        cuda!(cuda, cuMemAlloc_v2(&raw mut out => *mut u64, 256 => usize))?;
        Ok(Self { cuda, function, blocks: BLOCKS, out })
    }

    /// With so many blocks.
    pub fn with_blocks(self, blocks: c_uint) -> Self {
        Self { blocks, ..self }
    }

    /// Launches it on a stream.
    pub fn launch(&self, iterations: u64, stream: Handle) -> Result<(), Failed> {
        match self.prepared()?(iterations, stream) {
            0 => Ok(()),
            code => Err(Failed("cuLaunchKernel", code)),
        }
    }

    /// The launch with its symbol looked up once; it returns CUDA's code.
    pub fn prepared(&self) -> Result<impl Fn(u64, Handle) -> c_int + '_, Failed> {
        type Launch = unsafe extern "C" fn(
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
        // SAFETY: the type is that of cuda.h.
        let symbol = unsafe { self.cuda.get::<Launch>(b"cuLaunchKernel") };
        let symbol = symbol.map_err(|_| Failed("cuLaunchKernel", 500))?;
        Ok(move |iterations: u64, stream: Handle| {
            let (mut iterations, mut out) = (iterations, self.out);
            let mut arguments: [*mut u64; 2] = [&raw mut iterations, &raw mut out];
            // SAFETY: a function of a loaded module with its two arguments.
            unsafe {
                symbol(self.function, self.blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut())
            }
        })
    }

    /// Nanoseconds of an iteration, by CUDA's events around one kernel. Another process on the GPU makes it longer.
    pub fn iteration(&self) -> Result<f64, Failed> {
        const ITERATIONS: u32 = 20_000;
        let (cuda, stream) = (self.cuda, self.stream()?);
        let (mut start, mut end, mut milliseconds): (Handle, Handle, f32) = (null_mut(), null_mut(), 0.0);
        cuda!(cuda, cuEventCreate(&raw mut start => *mut Handle, 0 => c_uint))?;
        cuda!(cuda, cuEventCreate(&raw mut end => *mut Handle, 0 => c_uint))?;
        // the first launch loads the code
        for _ in 0..3 {
            cuda!(cuda, cuEventRecord(start => Handle, stream => Handle))?;
            self.launch(ITERATIONS.into(), stream)?;
            cuda!(cuda, cuEventRecord(end => Handle, stream => Handle))?;
            self.synchronize(stream)?;
        }
        cuda!(cuda, cuEventElapsedTime(&raw mut milliseconds => *mut f32, start => Handle, end => Handle))?;
        Ok(f64::from(milliseconds) * 1e6 / f64::from(ITERATIONS))
    }

    /// A new stream, independent of the default stream.
    pub fn stream(&self) -> Result<Handle, Failed> {
        let mut stream: Handle = null_mut();
        cuda!(self.cuda, cuStreamCreate(&raw mut stream => *mut Handle, 1 => c_uint))?;
        Ok(stream)
    }

    /// Waits for a stream.
    pub fn synchronize(&self, stream: Handle) -> Result<(), Failed> {
        cuda!(self.cuda, cuStreamSynchronize(stream => Handle))
    }

    /// A graph of so many launches.
    pub fn graph(&self, iterations: u64, launches: u32, stream: Handle) -> Result<Handle, Failed> {
        let (mut graph, mut executable): (Handle, Handle) = (null_mut(), null_mut());
        let global: c_int = 0;
        cuda!(self.cuda, cuStreamBeginCapture_v2(stream => Handle, global => c_int))?;
        (0..launches).try_for_each(|_| self.launch(iterations, stream))?;
        cuda!(self.cuda, cuStreamEndCapture(stream => Handle, &raw mut graph => *mut Handle))?;
        let to = &raw mut executable;
        cuda!(self.cuda, cuGraphInstantiateWithFlags(to => *mut Handle, graph => Handle, 0 => u64))?;
        Ok(executable)
    }

    /// Launches a graph.
    pub fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<(), Failed> {
        cuda!(self.cuda, cuGraphLaunch(graph => Handle, stream => Handle))
    }
}

/// Runs the kernel that writes where no memory is, and prints the code that CUDA answers when the program waits for it.
pub fn fault(cuda: &Library) -> Result<(), Failed> {
    let (mut module, mut function): (Handle, Handle) = (null_mut(), null_mut());
    cuda!(cuda, cuModuleLoadData(&raw mut module => *mut Handle, WRONG.as_ptr().cast() => *const c_void))?;
    let name = c"wrong".as_ptr();
    cuda!(cuda, cuModuleGetFunction(&raw mut function => *mut Handle, module => Handle, name => *const c_char))?;
    let (one, none): (c_uint, Handle) = (1, null_mut());
    let launched = cuda!(cuda, cuLaunchKernel(
        function => Handle, one => c_uint, one => c_uint, one => c_uint, one => c_uint, one => c_uint, one => c_uint,
        0 => c_uint, none => Handle, null_mut() => *mut *mut u64, null_mut() => *mut Handle,
    ));
    // either may return the error of the kernel
    let ended = launched.and_then(|()| cuda!(cuda, cuCtxSynchronize()));
    println!("code={}", ended.map_or_else(|Failed(_, code)| code, |()| 0));
    Ok(())
}
