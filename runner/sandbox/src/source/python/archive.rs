//! The standard library as a zip archive: without a file system, Python imports modules from it.
//!
//! Nothing in it is compressed: it is read more often than it is made.

/// What no script can use: windows, games, installers, tests of the library itself.
const LEFT_OUT: &[&str] = &[
    "idlelib/",
    "tkinter/",
    "turtle",
    "pydoc_data/",
    "ensurepip/",
    "venv/",
    "lib2to3/",
    "__phello__",
    "test/",
];
const BLOCK_BYTES: usize = 512;

/// The archive of the files of a tar file.
pub(super) fn of_tar(tar: &[u8]) -> Result<Vec<u8>, String> {
    let mut zip = Zip::default();
    let mut rest = tar;
    loop {
        // Two blocks of zeros are the end.
        let (head, after) = rest
            .split_at_checked(BLOCK_BYTES)
            .ok_or("the standard library is cut off")?;
        if head.iter().all(|byte| *byte == 0) {
            break;
        }
        let text = |from: usize, to: usize| {
            let field = &head[from..to];
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).into_owned()
        };
        let size = usize::from_str_radix(text(124, 136).trim(), 8)
            .map_err(|error| format!("the standard library cannot be read: {error}"))?;
        let content = after.get(..size).ok_or("the standard library is cut off")?;
        let prefix = text(345, 500);
        let name = match prefix.as_str() {
            "" => text(0, 100),
            prefix => format!("{prefix}/{}", text(0, 100)),
        };
        let name = name.trim_start_matches("./");
        match head[156] {
            b'0' | 0 if !LEFT_OUT.iter().any(|out| name.starts_with(out)) => zip.add(name, content)?,
            b'0' | 0 | b'5' => {}
            other => return Err(format!("the standard library has an entry of the type {other}")),
        }
        rest = after
            .get(size.next_multiple_of(BLOCK_BYTES)..)
            .ok_or("the standard library is cut off")?;
    }
    zip.finish()
}

#[derive(Default)]
struct Zip {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

impl Zip {
    /// The fields that the header of a file and its entry in the directory share. Python does not check the checksum.
    fn fields(name: &str, size: u32) -> Result<Vec<u8>, String> {
        // Needs version 1.0; no flags; stored; 1980-01-01.
        let mut fields = Vec::new();
        for half in [10u16, 0, 0, 0, 0x21] {
            fields.extend_from_slice(&half.to_le_bytes());
        }
        for word in [0, size, size] {
            fields.extend_from_slice(&word.to_le_bytes());
        }
        let length = u16::try_from(name.len()).map_err(|error| error.to_string())?;
        fields.extend_from_slice(&length.to_le_bytes());
        fields.extend_from_slice(&[0, 0]);
        Ok(fields)
    }

    fn add(&mut self, name: &str, content: &[u8]) -> Result<(), String> {
        let number = |number: usize| u32::try_from(number).map_err(|error| error.to_string());
        let at = number(self.bytes.len())?;
        let fields = Self::fields(name, number(content.len())?)?;
        self.bytes.extend_from_slice(b"PK\x03\x04");
        self.bytes.extend_from_slice(&fields);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(content);
        self.directory.extend_from_slice(b"PK\x01\x02\x0a\0");
        self.directory.extend_from_slice(&fields);
        // No comment, disk 0, no attributes.
        self.directory.extend_from_slice(&[0; 10]);
        self.directory.extend_from_slice(&at.to_le_bytes());
        self.directory.extend_from_slice(name.as_bytes());
        self.count += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>, String> {
        let number = |number: usize| u32::try_from(number).map_err(|error| error.to_string());
        let (at, size) = (number(self.bytes.len())?, number(self.directory.len())?);
        self.bytes.append(&mut self.directory);
        self.bytes.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        for half in [self.count, self.count] {
            self.bytes.extend_from_slice(&half.to_le_bytes());
        }
        for word in [size, at] {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.bytes.extend_from_slice(&[0, 0]);
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_files_that_scripts_can_use() {
        let entry = |name: &str, kind: u8, content: &[u8]| {
            let mut block = vec![0; BLOCK_BYTES];
            block[..name.len()].copy_from_slice(name.as_bytes());
            block[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
            block[156] = kind;
            block.extend_from_slice(content);
            block.resize(block.len().next_multiple_of(BLOCK_BYTES), 0);
            block
        };
        let tar = [
            entry("./json/", b'5', b""),
            entry("./json/__init__.py", b'0', b"x = 1\n"),
            entry("tkinter/__init__.py", b'0', b"y = 1\n"),
            entry("re.py", 0, b""),
            vec![0; 2 * BLOCK_BYTES],
        ]
        .concat();
        let zip = of_tar(&tar).unwrap();
        let text = String::from_utf8_lossy(&zip);
        assert_eq!(text.matches("json/__init__.py").count(), 2);
        assert!(text.contains("x = 1\n") && !text.contains("tkinter"));
        let end = zip.len() - 22;
        assert_eq!(&zip[end..end + 4], b"PK\x05\x06");
        assert_eq!(u16::from_le_bytes([zip[end + 10], zip[end + 11]]), 2);
        let at = u32::from_le_bytes(zip[end + 16..end + 20].try_into().unwrap()) as usize;
        assert_eq!(&zip[at..at + 4], b"PK\x01\x02");
        assert!(of_tar(&tar[..700]).is_err());
    }
}
