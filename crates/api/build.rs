//! Lists the files of the web console, if it was built (`npm run build` in `ui/`), so that they become part of the
//! binary.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    // Read at run time, not with `env!`: a target directory shared with another work tree keeps its compiled script.
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("cargo names no package folder"))?;
    let folder = Path::new(&manifest).join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    if folder.join("index.html").exists() {
        files.push(("index.html".to_owned(), folder.join("index.html")));
        for entry in fs::read_dir(folder.join("assets"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, path));
        }
    }
    // Each asset has a compressed `.gz` file beside it.
    files.retain(|(name, _)| !name.ends_with(".gz"));
    files.sort();
    let mut code = String::from("&[\n");
    for (name, path) in files {
        let plain = fs::canonicalize(&path)?;
        let gzip = fs::canonicalize(PathBuf::from(format!("{}.gz", path.display())))?;
        let (plain, gzip) = (plain.display().to_string(), gzip.display().to_string());
        writeln!(code, "File {{ name: {name:?}, plain: include_bytes!({plain:?}), gzip: include_bytes!({gzip:?}) }},")
            .map_err(io::Error::other)?;
    }
    code.push_str("]\n");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo names a folder to write to"))?;
    fs::write(Path::new(&out).join("page.rs"), code)
}
