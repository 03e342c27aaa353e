package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// source is what the sources of pkg/events say beside the types: comments, and the names of constants.
type source struct {
	constants []constant
	types     map[string]string            // type -> its comment
	fields    map[string]map[string]string // type -> JSON name of a field -> its comment
}

// constant is an exported constant of a text.
type constant struct{ name, value, comment string }

// readSource reads the package in a folder.
func readSource(dir string) (*source, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	s := &source{types: map[string]string{}, fields: map[string]map[string]string{}}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if decl, ok := d.(*ast.GenDecl); ok {
				s.read(decl)
			}
		}
	}
	if len(s.types) == 0 {
		return nil, fmt.Errorf("no types in %s", dir)
	}
	return s, nil
}

func (s *source) read(decl *ast.GenDecl) {
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			if decl.Tok != token.CONST || len(spec.Values) != len(spec.Names) {
				continue
			}
			for i, name := range spec.Names {
				if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING && name.IsExported() {
					value, err := strconv.Unquote(lit.Value)
					if err == nil {
						s.constants = append(s.constants, constant{name.Name, value, line(spec.Comment)})
					}
				}
			}
		case *ast.TypeSpec:
			st, ok := spec.Type.(*ast.StructType)
			if !ok || !spec.Name.IsExported() || !onWire(st) {
				continue
			}
			s.types[spec.Name.Name] = line(decl.Doc)
			s.fields[spec.Name.Name] = map[string]string{}
			for _, f := range st.Fields.List {
				if name := jsonName(f); name != "" {
					s.fields[spec.Name.Name][name] = line(f.Doc) + line(f.Comment)
				}
			}
		}
	}
}

// onWire tells whether a struct is a body or part of one.
func onWire(st *ast.StructType) bool {
	return slices.ContainsFunc(st.Fields.List, func(f *ast.Field) bool { return jsonName(f) != "" })
}

func jsonName(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
	return name
}

// line makes one line of a comment.
func line(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}

// beginning returns the constants whose name begins with one of the prefixes.
func (s *source) beginning(prefixes ...string) []constant {
	var out []constant
	for _, c := range s.constants {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(c.name, p) }) {
			out = append(out, c)
		}
	}
	return out
}
