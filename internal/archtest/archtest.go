// Package archtest checks what the compiler does not: which parts of ax may know of which, and a few rules of form. Its
// test runs it over the whole repository; every finding says why the rule is there.
package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// File is what the rules need to know of a Go file.
type File struct {
	Path     string // from the root of the repository, with slashes: services/cron/main.go
	Package  string // its package clause
	Imports  []string
	Lines    int
	Sleeps   []int // the lines that call time.Sleep
	Synctest bool  // it imports testing/synctest, in whose bubbles sleeping takes no time
	NATS     []int // the lines that name StartNATS of internal/localstack
}

func (f File) test() bool  { return strings.HasSuffix(f.Path, "_test.go") }
func (f File) dir() string { return path.Dir(f.Path) }

// Scan reads the Go files below root, whatever their build tags say.
func Scan(root string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (strings.HasPrefix(base, ".") || slices.Contains([]string{"testdata", "node_modules", "dist"}, base)) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parse(filepath.ToSlash(rel), source)
		files = append(files, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the sources: %w", err)
	}
	return files, nil
}

func parse(name string, source []byte) (File, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		return File{}, err
	}
	f := File{Path: name, Package: tree.Name.Name, Lines: bytes.Count(source, []byte("\n"))}
	clock, stack := "", ""
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return File{}, err
		}
		f.Imports = append(f.Imports, imported)
		switch imported {
		case "testing/synctest":
			f.Synctest = true
		case "time":
			clock = "time"
			if spec.Name != nil {
				clock = spec.Name.Name
			}
		case module + "/internal/localstack":
			stack = "localstack"
			if spec.Name != nil {
				stack = spec.Name.Name
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		switch line := set.Position(n.Pos()).Line; {
		case !ok:
		case clock != "" && pkg.Name == clock && sel.Sel.Name == "Sleep":
			f.Sleeps = append(f.Sleeps, line)
		case stack != "" && pkg.Name == stack && sel.Sel.Name == "StartNATS":
			f.NATS = append(f.NATS, line)
		}
		return true
	})
	return f, nil
}
