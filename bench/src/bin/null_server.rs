//! `null_server threads|seam unix:PATH SIZE` is an NBD server that only copies between socket and memory. `null_server
//! seam-file unix:PATH FILE` is one that reads from a file.

use bench::null_server::{seam, seam_file, threads};

const USAGE: &str = "usage: null_server threads|seam unix:PATH BYTES, or null_server seam-file unix:PATH FILE";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [variant, address, content] = arguments.as_slice() else { fail(USAGE) };
    let path = address.strip_prefix("unix:").unwrap_or_else(|| fail(USAGE));
    let size = || {
        let size = content.parse().ok().filter(|size: &usize| *size > 0 && size.is_multiple_of(4096));
        size.unwrap_or_else(|| fail("the size must be a positive multiple of 4096 bytes"))
    };
    let result = match variant.as_str() {
        "threads" => threads::serve(path.as_ref(), size()).map_err(|error| error.to_string()),
        "seam" => seam::serve(path.as_ref(), size()),
        "seam-file" => seam_file::serve(path.as_ref(), content.as_ref()),
        _ => fail(USAGE),
    };
    if let Err(error) = result {
        fail(&error);
    }
}

fn fail(text: &str) -> ! {
    eprintln!("{text}");
    std::process::exit(2)
}
